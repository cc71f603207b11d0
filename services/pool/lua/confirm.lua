-- Writes something, so that WAIT on the same connection waits for all that the server has written before. A command that
-- only reads would not do: WAIT then waits for the connection's last write.
-- include: begin
--
-- Reply   1
begin()
return 1
