-- Gives a seat to an owner under a new epoch, if it is free, its lease ran out, or its epoch is the dead one named.
-- include: keys time reap bells gateways
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  owner
--      3  lease, us
--      4  epoch known to be dead, or ""
--      5  nonce
-- Reply   the epoch, or "" while another owner's lease lives. A repeat by the owner before its first exchange gets
--         the same epoch again.
local seat, owner = ARGV[1], ARGV[2]
local seat_key = P .. "seat:" .. seat
stamp()
forget_gateways()
local waits = reap()
local held = redis.call("HMGET", seat_key, "epoch", "owner", "call")
if held[1] and held[1] == ARGV[4] then
  waits = waits + reclaim(seat)
elseif held[1] then
  if held[2] == owner and held[3] == "0" then
    publish()
    return held[1]
  end
  owner = nil
end
publish()
if waits > 0 then
  ring()
end
if not owner then
  return ""
end
local epoch = redis.call("HINCRBY", META, "epoch", 1) .. ":" .. ARGV[5]
redis.call("HSET", seat_key, "epoch", epoch, "owner", owner, "lease", ARGV[3], "call", 0, "claimed", cmsgpack.pack({}))
redis.call("ZADD", LEASES, now + tonumber(ARGV[3]), seat)
redis.call("ZADD", SEATS, "+inf", seat)
return epoch
