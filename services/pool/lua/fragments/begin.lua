-- include: keys
-- How a script begins: it reads the clock and stamps the pool. Also: whether the server's memory is full.
local OUTAGE = 5000000 -- us without any call, after which gateways and graces are extended by that time

-- The server's time in us. It is read once, because it advances while a script of Redis 6.2 runs. Tests give the time as
-- the further argument `now`.
local clock = redis.call("TIME")
local now = rawget(args, "now") or tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- As `now`, but greater than in all earlier scripts, even if the clock was set back. It stays so after the tail of the
-- append-only file was lost, because the lost tail is shorter than a restart takes. Epochs and events are numbered by it.
local tick
local resumed -- time (us) at which the last outage ended, all engines were last seen asleep, or the clock was set back

-- A server at its maxmemory refuses commands that may need memory. Inside a script, every version of Redis and Valkey
-- does so only until the script's first write command.

-- Makes the first write command, so that this script may write even if the server's memory is full. Changes nothing.
local function allow_writes()
  redis.call("HDEL", META, "")
end

-- Whether the server's memory is full. Only valid before this script's first write. Changes nothing.
local function memory_full()
  local reply = redis.pcall("SETRANGE", P .. "nothing", 0, "")
  return type(reply) == "table" and reply.err ~= nil and string.find(reply.err, "OOM", 1, true) ~= nil
end

-- Stamps the pool with the time. Every script that writes calls this first.
-- It works with full memory too: what follows frees memory, or finishes accepted requests, whose bytes were counted at
-- submit. After a gap of more than half a lease, or if the clock was set back, the lease starts again: no owner could
-- renew it while the server was away. For the same reason a long gap extends registrations of gateways and graces.
local function begin()
  allow_writes()
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
