-- include: keys time cancel_now turns
local CANCELLED_AT_ONCE = 64 -- groups one script cancels at most for want of followers
local CANCELLED_MOST = 4096 -- sequences after which it cancels no further group

-- Cancels a group: its waiting sequences end at once, its running ones are listed for their seats until they end.
-- Returns false if it is unknown or all of it has ended.
local function cancel_group(request)
  local open = false
  local group = redis.call("HMGET", P .. "group:" .. request, "ids", "tenant")
  redis.call("ZREM", ABANDONED, request)
  for _, id in ipairs(group[1] and cmsgpack.unpack(group[1]) or {}) do
    local sequence = redis.call("HMGET", P .. "seq:" .. id, "state", "seat")
    if sequence[1] == "waiting" then
      unwait(group[2], id)
      cancel_now(id)
      open = true
    elseif sequence[1] == "running" then
      redis.call("HSET", P .. "seq:" .. id, "cancelled", 1)
      redis.call("SADD", P .. "cancelled:" .. sequence[2], id)
      open = true
    end
  end
  return open
end

-- Cancels groups whose grace is over. Returns whether there were any.
local function cancel_abandoned()
  local overdue = redis.call("ZRANGEBYSCORE", ABANDONED, "-inf", now, "LIMIT", 0, CANCELLED_AT_ONCE)
  for _, request in ipairs(overdue) do
    if cancelled_now >= CANCELLED_MOST then
      break
    end
    cancel_group(request)
  end
  return #overdue > 0
end
