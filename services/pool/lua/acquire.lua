-- Gives a seat to an owner under a new epoch, if it is free, its lease ran out, or its epoch is the dead one named.
-- include: keys time reap cancel_group deadlines bells gateways counts
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  owner
--      3  lease, us
--      4  epoch known to be dead, or ""
--      5  nonce
-- Reply   {1, epoch, owner}, or {0, the holder's epoch and owner} while its lease lives. A repeat by the owner before
--         its first exchange gets the same epoch again.
local seat, owner = ARGV[1], ARGV[2]
local seat_key = P .. "seat:" .. seat
stamp()
forget_gateways()
local news = cancel_abandoned()
news = end_overdue() or news
news = reap() > 0 or news
local held = redis.call("HMGET", seat_key, "epoch", "owner", "call")
if held[1] and held[1] == ARGV[4] then
  redis.call("HSET", seat_key, "dead", held[1])
  news = reclaim(seat) > 0 or news
  held[1] = false
end
publish()
settle()
if news then
  ring()
end
if held[1] then
  return { held[2] == owner and held[3] == "0" and 1 or 0, held[1], held[2] }
end
local epoch = string.format("%.0f:%s", tick, ARGV[5])
redis.call("HSET", seat_key, "epoch", epoch, "owner", owner, "lease", ARGV[3], "call", 0)
redis.call("ZADD", LEASES, now + tonumber(ARGV[3]), seat)
redis.call("ZADD", SEATS, "+inf", seat)
return { 1, epoch, owner }
