-- include: keys time
local GATEWAY_TTL = 10000000 -- us, until its first heartbeat

-- Forgets gateways whose registration ran out; nobody writes to their streams from then on.
local function forget_gateways()
  for _, gateway in ipairs(redis.call("ZRANGEBYSCORE", GATEWAYS, "-inf", now)) do
    redis.call("DEL", P .. "gateway:" .. gateway, P .. "events:" .. gateway)
    redis.call("ZREM", GATEWAYS, gateway)
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

-- Makes a registered gateway a listener of a sequence; those that are gone make place.
local function listen(id, gateway)
  local all = { gateway }
  for other in string.gmatch(redis.call("HGET", LISTENERS, id) or "", "%S+") do
    if other ~= gateway and redis.call("ZSCORE", GATEWAYS, other) then
      all[#all + 1] = other
    end
  end
  redis.call("HSET", LISTENERS, id, table.concat(all, " "))
end
