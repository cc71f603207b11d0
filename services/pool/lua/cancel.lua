-- Cancels a group: its waiting sequences end at once, its running ones are listed for their seats until they end.
-- include: keys time cancel_group gateways bells counts
--
-- KEYS 1  the pool's prefix
-- ARGV 1  request
-- Reply   1, or 0 if the group is unknown or all of it has ended
stamp()
forget_gateways()
local open = cancel_group(ARGV[1])
publish()
settle()
if open then
  ring()
end
return open and 1 or 0
