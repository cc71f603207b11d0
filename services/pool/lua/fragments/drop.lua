-- include: begin counts
-- How ended groups are dropped: all their keys are removed.
local EXPIRED_AT_ONCE = 64 -- expired groups that one script drops at most
local MAX_DROPPED = 4096 -- sequences after which a script drops no further group, because other scripts wait for it

local num_dropped = 0 -- sequences that this script has dropped

-- Removes an ended group and all its sequences. The seats that have their texts for drafts are told so.
local function drop_group(request)
  local key = P .. "group:" .. request
  local group = redis.call("HMGET", key, "ids", "bytes", "key", "tenant", "remember")
  local ids = cmsgpack.unpack(group[1])
  for _, id in ipairs(ids) do
    local seat = group[5] and redis.call("HGET", P .. "seq:" .. id, "seat")
    if seat and redis.call("ZSCORE", LEASES, seat) then
      redis.call("SADD", P .. "forgotten:" .. seat, id)
    end
    redis.call("DEL", P .. "seq:" .. id, P .. "tok:" .. id, P .. "lp:" .. id)
  end
  if group[3] then
    redis.call("HDEL", IDEMPOTENCY, group[3])
  end
  redis.call("DEL", key)
  redis.call("ZREM", ENDED, request)
  redis.call("ZREM", P .. "ended:" .. group[4], request)
  add_to_counts(group[4], "ended", -#ids)
  add_to_counts(group[4], "bytes", -tonumber(group[2]))
  add_to_counts(group[4], "ended_bytes", -tonumber(group[2]))
  add_to_counts(group[4], "stored", -1)
  num_dropped = num_dropped + #ids
end

-- Drops some of the groups that ended more than `keep` us ago.
local function drop_expired_groups(keep)
  for _, request in ipairs(redis.call("ZRANGEBYSCORE", ENDED, "-inf", now - keep, "LIMIT", 0, EXPIRED_AT_ONCE)) do
    if num_dropped >= MAX_DROPPED then
      break
    end
    drop_group(request)
  end
end
