-- include: keys time
local EXPIRED_AT_ONCE = 64 -- groups one script drops at most for their age

-- Forgets an ended group and all its sequences.
local function drop(request)
  local group = redis.call("HMGET", P .. "group:" .. request, "ids", "bytes", "key")
  local ids = cmsgpack.unpack(group[1])
  for _, id in ipairs(ids) do
    redis.call("DEL", P .. "seq:" .. id, P .. "tok:" .. id, P .. "lp:" .. id)
  end
  if group[3] then
    redis.call("HDEL", IDEMPOTENCY, group[3])
  end
  redis.call("DEL", P .. "group:" .. request)
  redis.call("ZREM", ENDED, request)
  redis.call("HINCRBY", META, "ended", -#ids)
  redis.call("HINCRBY", META, "bytes", -tonumber(group[2]))
  redis.call("HINCRBY", META, "ended_bytes", -tonumber(group[2]))
end

-- Forgets some of the groups that ended more than `keep` us ago.
local function expire(keep)
  for _, request in ipairs(redis.call("ZRANGEBYSCORE", ENDED, "-inf", now - keep, "LIMIT", 0, EXPIRED_AT_ONCE)) do
    drop(request)
  end
end

-- Makes place for `more` bytes under the bound by forgetting ended groups, the oldest first.
-- Returns false, and forgets none, if what has not ended leaves no such place.
local function make_place(more, bound)
  local counts = redis.call("HMGET", META, "bytes", "ended_bytes")
  local bytes, ended = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
  if bytes - ended + more > bound then
    return false
  end
  while tonumber(redis.call("HGET", META, "bytes") or 0) + more > bound do
    drop(redis.call("ZRANGE", ENDED, 0, 0)[1])
  end
  return true
end
