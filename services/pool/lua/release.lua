-- Gives a seat back. Only its owner can; what it ran waits again.
-- include: keys time reap bells gateways
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  epoch
-- Reply   1, or 0 if the epoch is not the seat's
local seat = ARGV[1]
stamp()
forget_gateways()
if redis.call("HGET", P .. "seat:" .. seat, "epoch") ~= ARGV[2] then
  return 0
end
if vacate(seat) > 0 then
  ring()
end
publish()
return 1
