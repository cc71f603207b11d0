-- include: keys time publish end_sequence turns
local OVERDUE_AT_ONCE = 500 -- sequences, about, that one script ends for their deadline

-- Some of them has begun, or is to go on: the group has no deadline any more.
local function has_begun(ids)
  for _, id in ipairs(ids) do
    redis.call("ZREM", DEADLINES, redis.call("HGET", P .. "seq:" .. id, "group"))
  end
end

-- Ends groups of which no sequence has begun by their deadline. Returns whether it ended any, and whether it ended all.
local function end_overdue()
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
        unwait(group[2], id)
        tell_end(id, 0, END_TIMEOUT)
        end_sequence(id, END_TIMEOUT)
        redis.call("HINCRBYFLOAT", COUNTERS, "orca:timed_out_requests", 1)
      end
      ended = ended + 1
    end
  end
  return true, false
end
