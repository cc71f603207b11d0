-- include: keys time publish
-- The one place where a sequence ends. The caller took it from `waiting` or `running:<seat>` and tells listeners.
local function end_sequence(id, blob)
  redis.call("HSET", P .. "seq:" .. id, "state", "ended", "end", blob)
  redis.call("HDEL", P .. "seq:" .. id, "seat")
  for _, box in ipairs(all_outboxes()) do
    redis.call("SREM", box.listening, id)
  end
  redis.call("HINCRBY", META, "ended", 1)
  local group = redis.call("HGET", P .. "seq:" .. id, "group")
  if redis.call("HINCRBY", P .. "group:" .. group, "open", -1) == 0 then
    redis.call("ZADD", ENDED, now, group)
    redis.call("HINCRBY", META, "ended_bytes", redis.call("HGET", P .. "group:" .. group, "bytes"))
  end
end
