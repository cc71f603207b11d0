-- include: keys
-- The server's time in us, read once in a script (it ticks inside scripts of Redis 6.2).
local clock = redis.call("TIME")
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- Stamps the pool. After a gap of more than half a lease, or when the clock went back, the lease is given anew:
-- nobody could renew it while the server was away.
local function stamp()
  local gap = now - tonumber(redis.call("HGET", META, "stamp") or now)
  for _, seat in ipairs(redis.call("ZRANGE", LEASES, 0, -1)) do
    local lease = tonumber(redis.call("HGET", P .. "seat:" .. seat, "lease"))
    if gap < 0 or gap > lease / 2 then
      redis.call("ZADD", LEASES, now + lease, seat)
    end
  end
  redis.call("HSET", META, "stamp", now)
end
