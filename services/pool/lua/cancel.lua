-- Cancels a group: its waiting sequences end at once, its running ones are listed for their seats until they end.
-- include: keys time cancel_now gateways bells
--
-- KEYS 1  the pool's prefix
-- ARGV 1  request
-- Reply   1, or 0 if the group is unknown or all of it has ended
stamp()
forget_gateways()
local open = 0
local ids = redis.call("HGET", P .. "group:" .. ARGV[1], "ids")
for _, id in ipairs(ids and cmsgpack.unpack(ids) or {}) do
  local sequence = redis.call("HMGET", P .. "seq:" .. id, "state", "seat")
  if sequence[1] == "waiting" then
    redis.call("ZREM", WAITING, id)
    cancel_now(id)
    open = 1
  elseif sequence[1] == "running" then
    redis.call("HSET", P .. "seq:" .. id, "cancelled", 1)
    redis.call("SADD", P .. "cancelled:" .. sequence[2], id)
    open = 1
  end
end
publish()
if open == 1 then
  ring()
end
return open
