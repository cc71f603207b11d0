-- Makes a gateway stop listening to a group. If no gateway listens to the group any more, it goes on in the background,
-- is cancelled after its grace, or is cancelled at once, as its submission says.
-- include: cancellation gateways
--
-- Arguments
--   gateway, request
-- Reply   1, or 0 if the group is unknown or has ended
local gateway, request = args.gateway, args.request
begin()
forget_expired_gateways()
local group = redis.call("HMGET", P .. "group:" .. request, "ids", "open", "resumable", "background")
if not group[1] or group[2] == "0" then
  return 0
end
local ids = cmsgpack.unpack(group[1])
for _, id in ipairs(ids) do
  redis.call("SREM", P .. "listening:" .. gateway, id)
end
if group[3] == "1" or group[4] == "1" then
  abandon_without_listener(request)
elseif not has_listener(ids) then
  cancel_group(request)
  publish_events()
  save_counts()
  wake_idle_seats()
end
return 1
