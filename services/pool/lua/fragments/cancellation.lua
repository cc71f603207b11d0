-- include: end_sequence turns
-- Groups that end before an engine finishes them: cancelled ones, abandoned ones and those past their deadline.
local CANCELLED_AT_ONCE = 64 -- abandoned groups that one script cancels at most
local MAX_CANCELLED = 4096 -- sequences after which it cancels no further group
local OVERDUE_AT_ONCE = 500 -- approximate number of sequences that one script ends because of their deadline

local num_cancelled = 0 -- sequences that this script has ended as cancelled

-- Ends a sequence, which no seat runs, as cancelled.
local function end_as_cancelled(id)
  local index = redis.call("STRLEN", P .. "tok:" .. id) / 4
  queue_end(id, index, END_CANCELLED)
  end_sequence(id, END_CANCELLED)
  num_cancelled = num_cancelled + 1
end

-- Cancels a group. Its waiting sequences end at once; its running ones are listed in `cancelled:<seat>` until their
-- seats end them. Returns false if the group is unknown or has ended.
local function cancel_group(request)
  local open = false
  local group = redis.call("HMGET", P .. "group:" .. request, "ids", "tenant")
  redis.call("ZREM", ABANDONED, request)
  for _, id in ipairs(group[1] and cmsgpack.unpack(group[1]) or {}) do
    local sequence = redis.call("HMGET", P .. "seq:" .. id, "state", "seat")
    if sequence[1] == "waiting" then
      dequeue(group[2], id)
      end_as_cancelled(id)
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
local function cancel_abandoned_groups()
  local overdue = redis.call("ZRANGEBYSCORE", ABANDONED, "-inf", now, "LIMIT", 0, CANCELLED_AT_ONCE)
  for _, request in ipairs(overdue) do
    if num_cancelled >= MAX_CANCELLED then
      break
    end
    cancel_group(request)
  end
  return #overdue > 0
end

-- Removes the deadlines of the groups of these sequences, which were claimed.
local function clear_deadlines(ids)
  for _, id in ipairs(ids) do
    redis.call("ZREM", DEADLINES, redis.call("HGET", P .. "seq:" .. id, "group"))
  end
end

-- Ends groups of which no sequence was claimed by the deadline. Returns whether it ended any, and whether none is left.
local function end_overdue_groups()
  local ended = 0
  while ended < OVERDUE_AT_ONCE do
    local request = redis.call("ZRANGEBYSCORE", DEADLINES, "-inf", now, "LIMIT", 0, 1)[1]
    if not request then
      return ended > 0, true
    end
    redis.call("ZREM", DEADLINES, request)
    local group = redis.call("HMGET", P .. "group:" .. request, "ids", "tenant")
    for _, id in ipairs(cmsgpack.unpack(group[1])) do
      if redis.call("HGET", P .. "seq:" .. id, "state") == "waiting" then
        dequeue(group[2], id)
        queue_end(id, 0, END_TIMEOUT)
        end_sequence(id, END_TIMEOUT)
        redis.call("HINCRBYFLOAT", COUNTERS, "orca:timed_out_requests", 1)
      end
      ended = ended + 1
    end
  end
  return true, false
end
