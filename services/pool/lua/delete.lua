-- Drops an ended group. A group that has not ended is cancelled, hidden from now on, and dropped at its end.
-- include: cancellation gateways
--
-- KEYS 1  the pool's prefix
-- ARGV 1  request
-- Reply   1, or 0 if the group is unknown or hidden
local key = P .. "group:" .. ARGV[1]
begin()
forget_expired_gateways()
local group = redis.call("HMGET", key, "open", "deleted", "key")
if not group[1] or group[2] then
  return 0
end
if group[1] == "0" then
  drop_group(ARGV[1])
  save_counts()
  return 1
end
if group[3] then
  redis.call("HDEL", IDEMPOTENCY, group[3])
  redis.call("HDEL", key, "key")
end
redis.call("HSET", key, "deleted", 1)
cancel_group(ARGV[1])
publish_events()
save_counts()
wake_idle_seats()
return 1
