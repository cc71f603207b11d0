-- include: keys memory
local OUTAGE = 5000000 -- us without any call, after which gateways and graces get that time back

-- The server's time in us, read once in a script (it ticks inside scripts of Redis 6.2).
local clock = redis.call("TIME")
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- The same, but never one that a script had before: not when the clock went back, and, since the lost tail of an
-- append-only file is shorter than a restart, not after one was lost. Epochs and events are numbered by it.
local tick
local resumed -- time (us) at which the last outage ended, or the clock was last set back

-- Stamps the pool, however full the server's memory is: what follows frees memory, or finishes what was accepted, for
-- which bytes were counted at submit. After a gap of more than half a lease, or when the clock went back, the lease is given anew:
-- nobody could renew it while the server was away. Likewise a long gap is no time for what gateways must do in time.
local function stamp()
  write_anyway()
  local last = redis.call("HMGET", META, "stamp", "tick", "resumed")
  local gap = now - tonumber(last[1] or now)
  for _, seat in ipairs(redis.call("ZRANGE", LEASES, 0, -1)) do
    local lease = tonumber(redis.call("HGET", P .. "seat:" .. seat, "lease"))
    if gap < 0 or gap > lease / 2 then
      redis.call("ZADD", LEASES, now + lease, seat)
    end
  end
  resumed = tonumber(last[3] or 0)
  if gap < 0 or gap > OUTAGE then
    resumed = now
    redis.call("HSET", META, "resumed", now)
    for _, key in ipairs({ GATEWAYS, ABANDONED }) do
      for _, name in ipairs(redis.call("ZRANGE", key, 0, -1)) do
        redis.call("ZINCRBY", key, gap, name)
      end
    end
  end
  tick = math.max(now, tonumber(last[2] or 0) + 1)
  redis.call("HSET", META, "stamp", now, "tick", tick)
end
