-- include: begin
-- Gateways: their registrations, which sequences they listen to, and what becomes of groups without a listener.
local GATEWAY_TTL = 10000000 -- us until the first heartbeat
local ORPHANS_AT_ONCE = 64 -- sequences of forgotten gateways that one script looks after

-- Whether a registered gateway listens to one of the sequences.
local function has_listener(ids)
  for _, gateway in ipairs(redis.call("ZRANGE", GATEWAYS, 0, -1)) do
    for _, listens in ipairs(call_in_chunks("SMISMEMBER", P .. "listening:" .. gateway, ids)) do
      if listens == 1 then
        return true
      end
    end
  end
  return false
end

-- Starts the grace of a group that has no listener, unless it has ended or runs in the background.
local function abandon_without_listener(request)
  local group = redis.call("HMGET", P .. "group:" .. request, "ids", "open", "background", "grace")
  if group[2] ~= "0" and group[3] ~= "1" and not has_listener(cmsgpack.unpack(group[1])) then
    redis.call("ZADD", ABANDONED, "NX", now + tonumber(group[4]), request)
  end
end

-- Forgets a gateway. The sequences that it listened to become orphans.
local function forget_gateway(gateway)
  redis.call("SUNIONSTORE", ORPHANS, ORPHANS, P .. "listening:" .. gateway)
  redis.call("DEL", P .. "gateway:" .. gateway, P .. "events:" .. gateway, P .. "listening:" .. gateway)
  redis.call("ZREM", GATEWAYS, gateway)
end

-- Starts the grace of some groups of orphans that have no other listener. Their clients may return at another gateway.
local function abandon_orphans()
  local seen = {}
  for _, id in ipairs(redis.call("SPOP", ORPHANS, ORPHANS_AT_ONCE)) do
    local request = redis.call("HGET", P .. "seq:" .. id, "group")
    if request and not seen[request] then
      seen[request] = true
      abandon_without_listener(request)
    end
  end
end

-- Forgets gateways whose registration expired; nothing is written to their streams from then on. Must be called before
-- any event is queued.
local function forget_expired_gateways()
  for _, gateway in ipairs(redis.call("ZRANGEBYSCORE", GATEWAYS, "-inf", now)) do
    forget_gateway(gateway)
  end
  abandon_orphans()
end

-- Registers the gateway if it is unknown. It is `fresh` until a heartbeat has told it that it may have missed events.
local function register_gateway(gateway)
  if not redis.call("ZSCORE", GATEWAYS, gateway) then
    redis.call("ZADD", GATEWAYS, now + GATEWAY_TTL, gateway)
    redis.call("HSET", P .. "gateway:" .. gateway, "fresh", 1)
  end
end

-- Makes a registered gateway listen to a sequence that has not ended, and ends the grace of its group.
local function add_listener(gateway, id, request)
  redis.call("SADD", P .. "listening:" .. gateway, id)
  redis.call("ZREM", ABANDONED, request)
end
