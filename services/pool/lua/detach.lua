-- A gateway follows a group no more. If nobody does, the group goes on in the background, is cancelled after its grace,
-- or at once, as it was submitted.
-- include: keys time cancel_group gateways bells bulk counts
--
-- KEYS 1  the pool's prefix
-- ARGV 1  gateway
--      2  request
-- Reply   1, or 0 if the group is unknown or all of it has ended
local gateway, request = ARGV[1], ARGV[2]
stamp()
forget_gateways()
local group = redis.call("HMGET", P .. "group:" .. request, "ids", "open", "resumable", "background")
if not group[1] or group[2] == "0" then
  return 0
end
local ids = cmsgpack.unpack(group[1])
for _, id in ipairs(ids) do
  redis.call("SREM", P .. "listening:" .. gateway, id)
end
if group[3] == "1" or group[4] == "1" then
  abandon(request)
elseif not followed(ids) then
  cancel_group(request)
  publish()
  settle()
  ring()
end
return 1
