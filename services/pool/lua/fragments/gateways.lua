-- include: keys time bulk
local GATEWAY_TTL = 10000000 -- us, until its first heartbeat
local ORPHANS_AT_ONCE = 64 -- sequences of dead gateways that one script looks after

-- Whether a registered gateway listens to one of the sequences.
local function followed(ids)
  for _, gateway in ipairs(redis.call("ZRANGE", GATEWAYS, 0, -1)) do
    for _, listens in ipairs(bulk("SMISMEMBER", P .. "listening:" .. gateway, ids)) do
      if listens == 1 then
        return true
      end
    end
  end
  return false
end

-- If nobody follows this group any more, and it has not ended and is not in the background, its grace begins.
local function abandon(request)
  local group = redis.call("HMGET", P .. "group:" .. request, "ids", "open", "background", "grace")
  if group[2] ~= "0" and group[3] ~= "1" and not followed(cmsgpack.unpack(group[1])) then
    redis.call("ZADD", ABANDONED, "NX", now + tonumber(group[4]), request)
  end
end

-- Forgets a gateway. What it followed is an orphan.
local function forget(gateway)
  redis.call("SUNIONSTORE", ORPHANS, ORPHANS, P .. "listening:" .. gateway)
  redis.call("DEL", P .. "gateway:" .. gateway, P .. "events:" .. gateway, P .. "listening:" .. gateway)
  redis.call("ZREM", GATEWAYS, gateway)
end

-- Abandons some groups of orphans that nobody else follows: their clients may come back elsewhere.
local function abandon_orphans()
  local seen = {}
  for _, id in ipairs(redis.call("SPOP", ORPHANS, ORPHANS_AT_ONCE)) do
    local request = redis.call("HGET", P .. "seq:" .. id, "group")
    if request and not seen[request] then
      seen[request] = true
      abandon(request)
    end
  end
end

-- Forgets gateways whose registration ran out; nobody writes to their streams from then on. Before any event is put
-- into an outbox.
local function forget_gateways()
  for _, gateway in ipairs(redis.call("ZRANGEBYSCORE", GATEWAYS, "-inf", now)) do
    forget(gateway)
  end
  abandon_orphans()
end

-- Registers the gateway if it is unknown. It is fresh until a heartbeat told it so: it may have missed events.
local function register(gateway)
  if not redis.call("ZSCORE", GATEWAYS, gateway) then
    redis.call("ZADD", GATEWAYS, now + GATEWAY_TTL, gateway)
    redis.call("HSET", P .. "gateway:" .. gateway, "fresh", 1)
  end
end

-- Lets a gateway, which is registered, hear of a sequence that has not ended; nobody cancels its group for want of followers.
local function listen(gateway, id, request)
  redis.call("SADD", P .. "listening:" .. gateway, id)
  redis.call("ZREM", ABANDONED, request)
end
