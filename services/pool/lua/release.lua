-- Gives a seat back. Only its owner can; what it ran waits again, less what its engine died of too often.
-- include: keys time reap strikes bells gateways counts
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  epoch
--      3  ids that were in flight when the seat's engine died: msgpack
-- Reply   1, or 0 if the epoch is not the seat's
local seat = ARGV[1]
stamp()
forget_gateways()
if redis.call("HGET", P .. "seat:" .. seat, "epoch") ~= ARGV[2] then
  return 0
end
for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do
  if redis.call("SISMEMBER", P .. "running:" .. seat, id) == 1 then
    strike(seat, id, 0)
  end
end
redis.call("HSET", P .. "seat:" .. seat, "released", ARGV[2])
if vacate(seat) > 0 then
  ring()
end
publish()
settle()
return 1
