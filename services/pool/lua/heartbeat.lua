-- Renews a gateway's registration and adds its counters to the pool's.
-- include: cancellation gateways counters
--
-- Arguments
--   gateway
--   call      number, one above that of the previous heartbeat; the same number is a repeat
--   counters  [name, increment (as text), ...]
--   ttl       us until the registration expires
--   gauges    of the gateway (opaque)
--   settings  what the gateway says of its settings (opaque)
-- Reply   1; or 0 if the gateway may have missed events, because it was unknown since its last heartbeat or the server
--         lost heartbeats that it had answered. A repeat gets the first reply again.
local gateway, call = args.gateway, args.call
local gateway_key = P .. "gateway:" .. gateway
begin()
forget_expired_gateways()
local cancelled = cancel_abandoned_groups()
if end_overdue_groups() or cancelled then
  publish_events()
  save_counts()
  wake_idle_seats()
end
register_gateway(gateway)
redis.call("HSETNX", META, "created", math.floor(now / 1000000))
redis.call("ZADD", GATEWAYS, now + args.ttl, gateway)
local earlier = redis.call("HMGET", gateway_key, "call", "known", "fresh")
local last = tonumber(earlier[1] or 0)
if call <= last then
  return tonumber(earlier[2])
end
add_counters(args.counters)
local known = not earlier[3] and call == last + 1 and 1 or 0
redis.call("HSET", gateway_key, "call", call, "known", known, "gauges", args.gauges,
  "settings", args.settings)
redis.call("HDEL", gateway_key, "fresh")
return known
