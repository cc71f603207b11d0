-- include: keys time cancel_now strikes turns counts
local SEAT_KEPT = 3600000000 -- us a seat without an owner stays visible

-- A sequence that its seat gives up waits again at its rank, with its tokens; a cancelled one ends. The caller
-- takes it from the seat's sets. Returns whether it waits.
local function give_up(id)
  local state = redis.call("HMGET", P .. "seq:" .. id, "rank", "cancelled", "payer", "prompt_len", "class")
  if state[2] then
    cancel_now(id)
    return false
  end
  redis.call("HSET", P .. "seq:" .. id, "state", "waiting")
  redis.call("HDEL", P .. "seq:" .. id, "seat")
  local tenant = string.match(state[3], ":(.*)$")
  wait(tenant, id, state[1])
  count_waiting(tenant, state[5], 1, state[4], 1)
  count_running(tenant, state[5], -1)
  return true
end

-- Ends the ownership of a seat, which gives up what it runs. Returns how many wait again.
local function vacate(seat)
  local waits = 0
  for _, id in ipairs(redis.call("SMEMBERS", P .. "running:" .. seat)) do
    waits = waits + (give_up(id) and 1 or 0)
  end
  redis.call("DEL", P .. "running:" .. seat, P .. "cancelled:" .. seat, P .. "bell:" .. seat)
  redis.call("HDEL", P .. "seat:" .. seat, "epoch", "owner", "lease", "call", "said")
  redis.call("SREM", IDLE, seat)
  redis.call("ZREM", LEASES, seat)
  redis.call("ZADD", SEATS, now + SEAT_KEPT, seat)
  return waits
end

-- The same, of a seat whose owner is dead or silent.
local function reclaim(seat)
  strike_softly(seat)
  local waits = vacate(seat)
  if waits > 0 then
    redis.call("HINCRBYFLOAT", COUNTERS, "orca:reclaimed_requests", waits)
  end
  return waits
end

-- Reclaims all seats whose lease ran out and forgets those that had no owner for long.
-- Returns how many sequences wait again.
local function reap()
  local waits = 0
  for _, seat in ipairs(redis.call("ZRANGEBYSCORE", LEASES, "-inf", now)) do
    waits = waits + reclaim(seat)
  end
  for _, seat in ipairs(redis.call("ZRANGEBYSCORE", SEATS, "-inf", now)) do
    redis.call("DEL", P .. "seat:" .. seat)
    redis.call("ZREM", SEATS, seat)
  end
  return waits
end
