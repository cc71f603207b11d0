-- include: keys time publish expire
-- The one place where a sequence ends. The caller took it from `waiting` or `running:<seat>` and tells listeners.
local function end_sequence(id, blob)
  redis.call("HSET", P .. "seq:" .. id, "state", "ended", "end", blob)
  redis.call("HDEL", P .. "seq:" .. id, "seat")
  for _, box in ipairs(all_outboxes()) do
    redis.call("SREM", box.listening, id)
  end
  redis.call("HINCRBY", META, "ended", 1)
  local request = redis.call("HGET", P .. "seq:" .. id, "group")
  if redis.call("HINCRBY", P .. "group:" .. request, "open", -1) == 0 then
    local group = redis.call("HMGET", P .. "group:" .. request, "bytes", "deleted")
    redis.call("ZADD", ENDED, now, request)
    redis.call("ZREM", ABANDONED, request)
    redis.call("ZREM", DEADLINES, request)
    redis.call("HINCRBY", META, "ended_bytes", group[1])
    if group[2] then
      drop(request)
    end
  end
end
