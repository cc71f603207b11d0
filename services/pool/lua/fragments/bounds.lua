-- include: keys counts make_place
-- The bounds that a submission may pass, in the order in which both its needs and the bounds come. The bound of ended
-- groups, the last, refuses nothing: the oldest are forgotten.
local BOUNDS = { "waiting", "waiting_tokens", "streams", "bytes" }
local FIELDS = { "waiting_sequences", "waiting_tokens", "streams", "bytes" }

-- {bound, 1 if it is the tenant's own, what is there, what it needs, limit, seconds until it may be free}
local function refusal_of(i, counts, own, need, limit)
  local held = counts[FIELDS[i]]
  if FIELDS[i] == "bytes" then
    held = held - counts.ended_bytes
  end
  local seconds = seconds_until_free(counts, FIELDS[i], held, need, limit)
  return { BOUNDS[i], own and 1 or 0, held, need, limit, seconds }
end

-- Us that what is to be judged, of this rank (false: behind all that is there but lines of batches), is expected to wait.
-- Where no rate is known, that is not less than what the tenant's first sequence has waited for its turn, unless it goes
-- before that.
local function wait_of(tenant, rank)
  local own, queue = book_of(tenant), P .. "waiting:" .. tenant
  local before = rank and redis.call("ZCOUNT", queue, "-inf", string.format("%.0f", rank)) or own.backlog
  local wait = expected_wait(own, before)
  if before > 0 and not rate_known(own) then
    local s = redis.call("HMGET", P .. "seq:" .. redis.call("ZRANGE", queue, 0, 0)[1], "group", "payer")
    if not s[2] then
      wait = math.max(wait, now - tonumber(redis.call("HGET", P .. "group:" .. s[1], "arrival")))
    end
  end
  return wait
end

-- The refusal of one that a client would wait for too long. False if it may enter.
local function waits_too_long(tenant, most, rank)
  local wait = most > 0 and wait_of(tenant, rank) / 1e6 or 0
  if wait <= most then
    return false
  end
  local seconds = math.ceil(wait - (1 - FREE_FIRST) * most)
  return { "queue_wait", 1, math.ceil(wait), 0, math.ceil(most), math.max(1, math.min(RETRY_MOST, seconds)) }
end

-- The refusal of a submission of this tenant that needs so much of each bound; false if it passes none. Ended groups
-- are forgotten to make place for its bytes.
local function over_a_bound(tenant, bounds, needs)
  local all, own = book(META), book_of(tenant)
  for i = 1, 3 do
    for j, counts in ipairs({ own, all }) do
      local limit = bounds[3 - j][i]
      if limit > 0 and needs[i] > 0 and counts[FIELDS[i]] + needs[i] > limit then
        return refusal_of(i, counts, j == 1, needs[i], limit)
      end
    end
  end
  if not make_place(tenant, needs[4], bounds[1][4], bounds[2][4]) then
    local limit = bounds[2][4]
    local over = limit > 0 and own.bytes - own.ended_bytes + needs[4] > limit
    return refusal_of(4, over and own or all, over, needs[4], over and limit or bounds[1][4])
  end
  keep_few(tenant, bounds[1][5], bounds[2][5])
  return false
end
