-- Cancels a group. Its waiting sequences end at once; its running ones are listed for their seats until they end.
-- include: cancellation gateways
--
-- Arguments
--   request
-- Reply   1, or 0 if the group is unknown or has ended
begin()
forget_expired_gateways()
local open = cancel_group(args.request)
publish_events()
save_counts()
if open then
  wake_idle_seats()
end
return open and 1 or 0
