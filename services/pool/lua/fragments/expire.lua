-- include: keys time counts
local EXPIRED_AT_ONCE = 64 -- groups one script drops at most for their age
local DROPPED_MOST = 4096 -- sequences after which a script drops no further group: others wait for it

local dropped = 0 -- sequences that this script has forgotten

-- Forgets an ended group and all its sequences.
local function drop(request)
  local key = P .. "group:" .. request
  local group = redis.call("HMGET", key, "ids", "bytes", "key", "tenant")
  local ids = cmsgpack.unpack(group[1])
  for _, id in ipairs(ids) do
    redis.call("DEL", P .. "seq:" .. id, P .. "tok:" .. id, P .. "lp:" .. id)
  end
  if group[3] then
    redis.call("HDEL", IDEMPOTENCY, group[3])
  end
  redis.call("DEL", key)
  redis.call("ZREM", ENDED, request)
  redis.call("ZREM", P .. "ended:" .. group[4], request)
  count(group[4], "ended", -#ids)
  count(group[4], "bytes", -tonumber(group[2]))
  count(group[4], "ended_bytes", -tonumber(group[2]))
  count(group[4], "stored", -1)
  dropped = dropped + #ids
end

-- Forgets some of the groups that ended more than `keep` us ago.
local function expire(keep)
  for _, request in ipairs(redis.call("ZRANGEBYSCORE", ENDED, "-inf", now - keep, "LIMIT", 0, EXPIRED_AT_ONCE)) do
    if dropped >= DROPPED_MOST then
      break
    end
    drop(request)
  end
end
