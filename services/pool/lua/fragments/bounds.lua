-- include: patience drop
-- Bounds: which submissions are refused, and which ended groups are dropped to make room for new ones.
--
-- A tenant's share of a bound is the bound divided by the number of tenants that have anything in the pool. Ended groups
-- of the tenant that submits are dropped first, if it has more than its share. Then those of the tenant that is furthest
-- above its share. What a tenant keeps within its share is dropped only for its own requests.

-- The bounds that refuse a submission, in the order of the script's arguments, and their counts. The last bound of the
-- arguments, that of ended groups, refuses nothing: the oldest groups are dropped.
local BOUNDS = { "waiting", "waiting_tokens", "streams", "bytes" }
local FIELDS = { "waiting_sequences", "waiting_tokens", "streams", "bytes" }

-- All tenants that have anything in the pool, and `tenant`.
local function holders(tenant)
  local names, found = redis.call("SMEMBERS", HOLDERS), false
  for _, name in ipairs(names) do
    found = found or name == tenant
  end
  if not found then
    names[#names + 1] = tenant
  end
  return names
end

-- The tenant whose oldest ended group is to be dropped so that `tenant` gets `more` of the count `name`; false if none.
local function tenant_to_drop_from(names, tenant, name, more, limit)
  local share, most, found = limit / #names, 0, false
  local own = counts_of(tenant)
  if own.stored > 0 and own[name] + more > share then
    return tenant
  end
  for _, other in ipairs(names) do
    local counts = counts_of(other)
    local has = counts[name]
    if other ~= tenant and counts.stored > 0 and has > share and (has > most or has == most and other < found) then
      most, found = has, other
    end
  end
  return found or own.stored > 0 and tenant
end

-- Approximate number of bytes that can be freed for the tenant; other tenants keep their share.
local function freeable_bytes(names, tenant, limit)
  local share, sum = limit / #names, counts_of(tenant).ended_bytes
  for _, other in ipairs(names) do
    if other ~= tenant then
      local counts = counts_of(other)
      sum = sum + math.max(0, math.min(counts.ended_bytes, counts.bytes - share))
    end
  end
  return sum
end

local function drop_oldest_group(tenant)
  drop_group(redis.call("ZRANGE", P .. "ended:" .. tenant, 0, 0)[1])
end

-- Drops ended groups until their number is below the bounds of all tenants and of this one (0: no bound).
local function limit_ended_groups(tenant, all_limit, own_limit)
  local own, all = counts_of(tenant), counts_at(META)
  while own_limit > 0 and own.stored >= own_limit and num_dropped < MAX_DROPPED do
    drop_oldest_group(tenant)
  end
  if all_limit > 0 and all.stored >= all_limit then
    local names = holders(tenant)
    while all.stored >= all_limit and num_dropped < MAX_DROPPED do
      local from = tenant_to_drop_from(names, tenant, "stored", 1, all_limit)
      if not from then
        break
      end
      drop_oldest_group(from)
    end
  end
end

-- Whether `more` bytes of the tenant fit under both bounds (0: no own bound) once ended groups are dropped.
local function can_make_room(names, tenant, more, all_limit, own_limit)
  local own, all = counts_of(tenant), counts_at(META)
  return (own_limit == 0 or own.bytes - own.ended_bytes + more <= own_limit)
    and (all.bytes + more <= all_limit or all.bytes + more - freeable_bytes(names, tenant, all_limit) <= all_limit)
end

-- Drops ended groups until `more` bytes of the tenant fit under both bounds. Returns false if they cannot fit, with
-- nothing dropped; or if one script may not drop enough, with that much dropped.
local function make_room(tenant, more, all_limit, own_limit)
  local own, all = counts_of(tenant), counts_at(META)
  local fits_all, fits_own = all.bytes + more <= all_limit, own_limit == 0 or own.bytes + more <= own_limit
  if fits_all and fits_own then
    return true
  end
  local names = holders(tenant)
  if not can_make_room(names, tenant, more, all_limit, own_limit) then
    return false
  end
  while own_limit > 0 and own.bytes + more > own_limit and num_dropped < MAX_DROPPED do
    drop_oldest_group(tenant)
  end
  while all.bytes + more > all_limit and num_dropped < MAX_DROPPED do
    local from = tenant_to_drop_from(names, tenant, "bytes", more, all_limit)
    if not from then
      return false
    end
    drop_oldest_group(from)
  end
  return all.bytes + more <= all_limit and (own_limit == 0 or own.bytes + more <= own_limit)
end

-- The refusal by bound number `i`. `counts` are the tenant's if `own`, else those of all tenants. `retry_after`: seconds
-- until there may be room.
local function refusal_of(i, counts, own, need, limit)
  local held = counts[FIELDS[i]]
  if FIELDS[i] == "bytes" then
    held = held - counts.ended_bytes
  end
  local seconds = seconds_until_free(counts, FIELDS[i], held, need, limit)
  return by_name({ bound = BOUNDS[i], own = own and 1 or 0, held = held, asked = need, limit = limit,
    retry_after = seconds })
end

-- The expected time (us) in the queue of a new sequence of this rank; `rank` = false means behind all others but late
-- ones and lines of batches. Where no rate is known, it is at least the time that the tenant's first sequence has waited,
-- without that in which all engines slept, unless the new sequence goes before that one.
local function expected_queue_wait(tenant, rank)
  local own, queue = counts_of(tenant), P .. "waiting:" .. tenant
  rank = rank or math.max(now, tonumber(redis.call("HGET", META, "rank") or 0))
  local before = redis.call("ZCOUNT", queue, "-inf", string.format("%.0f", rank))
  local wait = expected_wait(own, before)
  if before > 0 and not rate_known(own) then
    local s = redis.call("HMGET", P .. "seq:" .. redis.call("ZRANGE", queue, 0, 0)[1], "group", "payer")
    if not s[2] then
      wait = math.max(wait, now - waits_since(redis.call("HGET", P .. "group:" .. s[1], "arrival")))
    end
  end
  return wait
end

-- The refusal of a submission that is expected to wait for more than `most` seconds (0: no limit), or for longer than
-- the tenant's clients are seen to wait; false if it may enter.
local function refuse_for_wait(tenant, most, rank)
  local limit = longest_wait(counts_of(tenant), most * 1e6) / 1e6
  local wait = limit > 0 and expected_queue_wait(tenant, rank) / 1e6 or 0
  if wait <= limit then
    return false
  end
  local seconds = math.ceil(wait - (1 - FREE_SHARE) * limit)
  return by_name({ bound = "queue_wait", own = 1, held = math.ceil(wait), asked = 0, limit = math.ceil(limit),
    retry_after = math.max(1, math.min(MAX_RETRY_AFTER, seconds)) })
end

-- The refusal of a submission that would exceed a bound; false if it may enter. `needs` has a number for each of BOUNDS.
-- Drops ended groups to make room for its bytes.
local function refuse_for_bounds(tenant, bounds, needs)
  local all, own = counts_at(META), counts_of(tenant)
  for i = 1, 3 do
    for j, counts in ipairs({ own, all }) do
      local limit = bounds[3 - j][i]
      if limit > 0 and needs[i] > 0 and counts[FIELDS[i]] + needs[i] > limit then
        return refusal_of(i, counts, j == 1, needs[i], limit)
      end
    end
  end
  if not make_room(tenant, needs[4], bounds[1][4], bounds[2][4]) then
    local limit = bounds[2][4]
    local over = limit > 0 and own.bytes - own.ended_bytes + needs[4] > limit
    return refusal_of(4, over and own or all, over, needs[4], over and limit or bounds[1][4])
  end
  limit_ended_groups(tenant, bounds[1][5], bounds[2][5])
  return false
end
