-- Drops an ended group. A group that has not ended is cancelled, hidden from now on, and dropped at its end.
-- include: cancellation gateways
--
-- Arguments
--   request
-- Reply   1, or 0 if the group is unknown or hidden
local key = P .. "group:" .. args.request
begin()
forget_expired_gateways()
local group = redis.call("HMGET", key, "open", "deleted", "key")
if not group[1] or group[2] then
  return 0
end
if group[1] == "0" then
  drop_group(args.request)
  save_counts()
  return 1
end
if group[3] then
  redis.call("HDEL", IDEMPOTENCY, group[3])
  redis.call("HDEL", key, "key")
end
redis.call("HSET", key, "deleted", 1)
cancel_group(args.request)
publish_events()
save_counts()
wake_idle_seats()
return 1
