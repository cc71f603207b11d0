-- include: cancellation
-- Seats: what happens to the sequences of a seat that loses its owner or its engine, and strikes.
local SEAT_KEPT = 3600000000 -- us that a seat without an owner stays visible
local MAX_STRIKES = 3
-- Soft strikes also hit sequences that merely ran where a machine failed, a pod was moved or a network was partitioned.
-- This many in a row, without one token for a sequence that runs alone from the second strike on, are no coincidence.
local MAX_SOFT_STRIKES = 6
local SUSPECT = 2 -- strikes of both kinds from which on a scheduler runs a sequence alone

-- Whether a seat has an index from the number of wanted engines on: it gets no requests, and whoever owns it removes its
-- engine.
local function is_surplus(seat)
  local cluster, index = cluster_of(seat)
  local wanted = cluster and redis.call("HGET", WANTED, cluster)
  return wanted and index >= tonumber(wanted) or false
end

-- Forgets a seat that has no owner, and with the last seat of its cluster how many engines that is to have.
local function forget_seat(seat)
  redis.call("DEL", P .. "seat:" .. seat)
  redis.call("ZREM", SEATS, seat)
  local cluster = cluster_of(seat)
  for _, other in ipairs(cluster and redis.call("ZRANGE", SEATS, 0, -1) or {}) do
    if cluster_of(other) == cluster then
      return
    end
  end
  if cluster then
    redis.call("HDEL", WANTED, cluster)
    redis.call("HDEL", CONFIGURED, cluster)
  end
end

-- Returns a sequence's strikes of both kinds since its last token, how many of them are soft, the number of its tokens,
-- and whether it is cancelled.
local function strikes_of(id)
  local tokens = redis.call("STRLEN", P .. "tok:" .. id) / 4
  local s = redis.call("HMGET", P .. "seq:" .. id, "strikes", "soft", "struck_at", "cancelled")
  if tonumber(s[3]) == tokens then
    return tonumber(s[1]), tonumber(s[2]), tokens, s[4]
  end
  return 0, 0, tokens, s[4]
end

-- Gives a sequence a strike because the seat's engine died while the sequence ran, or, with `soft` = 1 (else 0), because
-- the seat's owner did. Strikes add up while no token is committed. With the last one the sequence ends and leaves the
-- seat. A cancelled sequence gets no strike.
local function strike(seat, id, soft)
  local strikes, num_soft, tokens, cancelled = strikes_of(id)
  if cancelled then
    return
  end
  strikes, num_soft = strikes + 1, num_soft + soft
  redis.call("HSET", P .. "seq:" .. id, "strikes", strikes, "soft", num_soft, "struck_at", tokens)
  local blob = strikes - num_soft >= MAX_STRIKES and END_POISON or num_soft >= MAX_SOFT_STRIKES and END_SEATS_LOST
  if blob then
    redis.call("SREM", P .. "running:" .. seat, id)
    queue_end(id, tokens, blob)
    end_sequence(id, blob)
    redis.call("HINCRBYFLOAT", COUNTERS, "orca:poisoned_requests", 1)
  end
end

-- Gives soft strikes after the seat's owner died or fell silent, where nothing says which sequences were in an iteration.
-- The first suspect in the order of the queue gets one, because it ran alone; without a suspect, all sequences get one, or
-- all but lines of batches where both ran.
local function strike_softly(seat)
  local lines, others, first, least = {}, {}, nil, math.huge
  for _, id in ipairs(redis.call("SMEMBERS", P .. "running:" .. seat)) do
    local s = redis.call("HMGET", P .. "seq:" .. id, "rank", "group")
    local list = is_line(redis.call("HGET", P .. "group:" .. s[2], "priority")) and lines or others
    list[#list + 1] = { id, tonumber(s[1]) }
  end
  local ids = {}
  for _, one in ipairs(#others > 0 and others or lines) do
    local strikes = strikes_of(one[1])
    ids[#ids + 1] = one[1]
    if strikes >= SUSPECT and (one[2] < least or one[2] == least and one[1] < first) then
      first, least = one[1], one[2]
    end
  end
  for _, id in ipairs(first and { first } or ids) do
    strike(seat, id, 1)
  end
end

-- Puts a sequence that its seat no longer runs back into the queue, with its rank and tokens; ends it if it is
-- cancelled. The caller removes it from the seat's sets. `taken`: 1 if its owner is dead or silent, or does not know it;
-- 0 if the owner has given it back. Returns whether it waits.
local function requeue(seat, id, taken)
  local state = redis.call("HMGET", P .. "seq:" .. id, "rank", "cancelled", "payer", "prompt_len", "group", "claimed")
  if state[2] then
    end_as_cancelled(id)
    return false
  end
  redis.call("HSET", P .. "seq:" .. id, "state", "waiting")
  if state[6] then -- an earlier build does not write it
    local epoch = redis.call("HGET", P .. "seat:" .. seat, "epoch") or ""
    redis.call("HSET", P .. "seq:" .. id, "left", cmsgpack.pack({ seat, epoch, tonumber(state[6]), now, taken }))
  end
  redis.call("HDEL", P .. "seq:" .. id, "seat")
  local tenant = string.match(state[3], ":(.*)$")
  enqueue(tenant, id, state[1])
  local priority = redis.call("HGET", P .. "group:" .. state[5], "priority")
  count_waiting(tenant, priority, 1, state[4], 1)
  count_running(tenant, priority, -1)
  return true
end

-- Takes a seat from its owner and requeues what it runs; `taken` as for `requeue`. Returns how many sequences wait again.
local function vacate_seat(seat, taken)
  local requeued = 0
  for _, id in ipairs(redis.call("SMEMBERS", P .. "running:" .. seat)) do
    requeued = requeued + (requeue(seat, id, taken) and 1 or 0)
  end
  redis.call("DEL", P .. "running:" .. seat, P .. "cancelled:" .. seat, P .. "forgotten:" .. seat,
    P .. "bell:" .. seat)
  redis.call("HDEL", P .. "seat:" .. seat, "epoch", "owner", "lease", "call", "said")
  redis.call("SREM", IDLE, seat)
  redis.call("ZREM", LEASES, seat)
  redis.call("ZADD", SEATS, now + SEAT_KEPT, seat)
  return requeued
end

-- Takes a seat from an owner that is dead or silent. Returns how many sequences wait again.
local function reclaim_seat(seat)
  strike_softly(seat)
  local requeued = vacate_seat(seat, 1)
  if requeued > 0 then
    redis.call("HINCRBYFLOAT", COUNTERS, "orca:reclaimed_requests", requeued)
  end
  return requeued
end

-- Reclaims all seats whose lease expired, and forgets seats that have had no owner for long.
-- Returns how many sequences wait again.
local function reclaim_expired_seats()
  local requeued = 0
  for _, seat in ipairs(redis.call("ZRANGEBYSCORE", LEASES, "-inf", now)) do
    requeued = requeued + reclaim_seat(seat)
  end
  for _, seat in ipairs(redis.call("ZRANGEBYSCORE", SEATS, "-inf", now)) do
    forget_seat(seat)
  end
  return requeued
end

-- Requeues what runs at the seat except `ids`, which are all that its owner holds. Adds to `foreign` those of `ids` that
-- neither run at the seat nor are in `ended`. Returns how many sequences wait again.
local function requeue_all_but(seat, ids, ended, foreign, lacking)
  local held, requeued = {}, 0
  for _, id in ipairs(ids) do
    held[id] = true
  end
  for _, id in ipairs(redis.call("SMEMBERS", P .. "running:" .. seat)) do
    if held[id] then
      held[id] = nil
    else
      redis.call("SREM", P .. "running:" .. seat, id)
      redis.call("SREM", P .. "cancelled:" .. seat, id)
      lacking[id] = nil
      requeued = requeued + (requeue(seat, id, 1) and 1 or 0)
    end
  end
  for id in pairs(held) do
    foreign[id] = not ended[id] or nil
  end
  return requeued
end
