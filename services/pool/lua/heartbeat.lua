-- Renews a gateway's registration and adds its counters.
-- include: keys time cancel_group deadlines gateways bells counts
--
-- KEYS 1  the pool's prefix
-- ARGV 1  gateway
--      2  call number, one above that of the heartbeat before; the same again is a repeat
--      3  counters: msgpack [name, increment (as text), ...]
--      4  us until the registration runs out
-- Reply   1, or 0 if the gateway was unknown since its last heartbeat, or the server lost heartbeats it had answered: it
--         may have missed events. A repeat gets the first reply again.
local gateway, call = ARGV[1], tonumber(ARGV[2])
local gateway_key = P .. "gateway:" .. gateway
local counters = cmsgpack.unpack(ARGV[3])
stamp()
forget_gateways()
local news = cancel_abandoned()
if end_overdue() or news then
  publish()
  settle()
  ring()
end
register(gateway)
redis.call("ZADD", GATEWAYS, now + tonumber(ARGV[4]), gateway)
local said = redis.call("HMGET", gateway_key, "call", "known", "fresh")
local last = tonumber(said[1] or 0)
if call <= last then
  return tonumber(said[2])
end
for i = 1, #counters, 2 do
  redis.call("HINCRBYFLOAT", COUNTERS, counters[i], counters[i + 1])
end
local known = not said[3] and call == last + 1 and 1 or 0
redis.call("HSET", gateway_key, "call", call, "known", known)
redis.call("HDEL", gateway_key, "fresh")
return known
