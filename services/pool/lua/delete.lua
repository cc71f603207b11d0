-- Forgets an ended group. One that goes on is cancelled, hidden from now on, and forgotten when it has ended.
-- include: keys time cancel_group expire gateways bells counts
--
-- KEYS 1  the pool's prefix
-- ARGV 1  request
-- Reply   1, or 0 if the group is unknown or hidden
local key = P .. "group:" .. ARGV[1]
stamp()
forget_gateways()
local group = redis.call("HMGET", key, "open", "deleted", "key")
if not group[1] or group[2] then
  return 0
end
if group[1] == "0" then
  drop(ARGV[1])
  settle()
  return 1
end
if group[3] then
  redis.call("HDEL", IDEMPOTENCY, group[3])
  redis.call("HDEL", key, "key")
end
redis.call("HSET", key, "deleted", 1)
cancel_group(ARGV[1])
publish()
settle()
ring()
return 1
