-- include: keys time
local GATEWAY_TTL = 10000000 -- us, until its first heartbeat

local function forget(gateway)
  redis.call("DEL", P .. "gateway:" .. gateway, P .. "events:" .. gateway, P .. "listening:" .. gateway)
  redis.call("ZREM", GATEWAYS, gateway)
end

-- Forgets gateways whose registration ran out; nobody writes to their streams from then on, and
-- they listen to nothing any more.
local function forget_gateways()
  for _, gateway in ipairs(redis.call("ZRANGEBYSCORE", GATEWAYS, "-inf", now)) do
    forget(gateway)
  end
end

-- Registers the gateway if it is unknown. It is fresh until a heartbeat told it so: it may have missed events.
local function register(gateway)
  if not redis.call("ZSCORE", GATEWAYS, gateway) then
    redis.call("ZADD", GATEWAYS, now + GATEWAY_TTL, gateway)
    redis.call("HSET", P .. "gateway:" .. gateway,
      "registration", redis.call("HINCRBY", META, "registration", 1), "fresh", 1)
  end
end
