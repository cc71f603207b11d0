-- include: seats needs patience
-- Claims: a seat takes waiting sequences, as `Select` of the Orca paper's Algorithm 1 admits requests: in order, up to
-- the first that does not fit.
local MAX_PASSED = 1000 -- sequences that one script skips, puts behind, or ends because no engine can serve them
local MAX_PASSED_OF_TENANT = 500 -- of one tenant, which then has no more turns in this script: others have theirs
local RETURN_TIME = 900000000 -- us within which a seat that lost its owner may have one again: a start may take so long

-- What a scheduler needs of a claimed sequence: the fields of `Claim` in services/messages.py. Times are in us. `before`
-- is {} unless the sequence has a trace context; then it says how it left the seat before: [seat, epoch, us since that
-- seat claimed it, us since it left, 1 if it was taken from an owner that is dead or silent].
local function claim_contents(id)
  local s = redis.call("HMGET", P .. "seq:" .. id, "rank", "asked", "strikes", "struck_at", "group", "tokens_max",
    "prompt_len", "left")
  local prompt, sampling, choice = unpack(cmsgpack.unpack(s[2]))
  local group = redis.call("HMGET", P .. "group:" .. s[5], "priority", "ttft", "arrival", "tenant",
    "prompt" .. prompt, "sampling" .. sampling, "trace", "remember")
  local tokens = redis.call("GET", P .. "tok:" .. id) or ""
  local strikes = tonumber(s[4]) == #tokens / 4 and tonumber(s[3]) or 0
  local left = group[7] and s[8] and cmsgpack.unpack(s[8]) or {}
  if left[1] then
    left = { left[1], left[2], now - left[3], now - left[4], left[5] }
  end
  return by_name({ id = id, rank = s[1], prompt = group[5], output = tokens, sampling = group[6], strikes = strikes,
    priority = tonumber(group[1]), ttft = tonumber(group[2]), waited = now - tonumber(group[3]), tenant = group[4],
    choice = choice, max_new_tokens = tokens_in(s[6]) - s[7], trace = group[7] or "", before = left,
    remember = group[8] and 1 or 0 })
end

local function contents_of_claims(ids)
  local claims = {}
  for i, id in ipairs(ids) do
    claims[i] = claim_contents(id)
  end
  return claims
end

-- Sequences and blocks that the later classes in `yields` would yield to one of this class.
local function yielded_to(yields, priority)
  local requests, blocks = 0, 0
  for _, yield in ipairs(yields) do
    if yield[1] > priority then
      requests, blocks = requests + yield[2], blocks + yield[3]
    end
  end
  return requests, blocks
end

-- Size and features of the engines of all other seats that have an owner or may soon have one again; false of an engine
-- that has not said them yet.
local function engines_elsewhere(seat)
  local engines = {}
  local names = redis.call("ZRANGEBYSCORE", SEATS, now + SEAT_KEPT - RETURN_TIME, "+inf")
  for _, name in ipairs(names) do
    if name ~= seat then
      local known = redis.call("HMGET", P .. "seat:" .. name, "slots", "features")
      engines[#engines + 1] = known[1] and { tokens_in(known[1]), features_in(known[1], known[2]) }
    end
  end
  return engines
end

local function served_by_any(engines, tokens, needs)
  for _, engine in ipairs(engines) do
    if not engine or can_serve(engine[1], engine[2], tokens, needs) then
      return true
    end
  end
  return false
end

-- Ends a waiting sequence that no engine can serve.
local function end_unserved(tenant, id, needs)
  local blob = #needs > 0 and END_UNSERVED or END_TOO_LARGE
  dequeue(tenant, id)
  queue_end(id, redis.call("STRLEN", P .. "tok:" .. id) / 4, blob)
  end_sequence(id, blob)
end

-- Moves a waiting sequence to the seat, at its tenant's turn. The tenant is charged for the prompt once: it does not pay
-- for what is computed again after a seat died.
local function assign(seat, id, tenant, turn, s)
  local counter, count = counter_of(s.priority), tonumber(string.sub(turn, 1, 16))
  if not s.payer then
    if count > tonumber(redis.call("HGET", META, counter) or 0) then
      redis.call("HSET", META, counter, string.format("%.0f", count))
    end
    count = count + PROMPT_TOKEN * s.prompt
  end
  redis.call("ZREM", P .. "waiting:" .. tenant, id)
  count_claim(tenant, s.priority, s.prompt)
  redis.call("HSET", P .. "turn:" .. tenant, counter, string.format("%.0f", count))
  if not is_line(s.priority) then
    redis.call("HSET", P .. "turn:" .. tenant, "last", now)
  end
  redis.call("HSET", P .. "seq:" .. id, "state", "running", "seat", seat, "claimed", now,
    "payer", counter .. ":" .. tenant)
  redis.call("SADD", P .. "running:" .. seat, id)
end

-- Finds the next turn, and its tenant's first sequence that the seat's engine can serve. Returns turn, tenant, id and
-- sequence; nothing if no tenant has a turn; only turn and tenant if turns have changed and must be looked up again.
-- Sequences before it are skipped if another seat can serve them, and end if none can; late ones are put behind. `skipped`
-- counts the skipped ones by tenant, `all.count` counts all of these.
local function next_claimable(seat, room, skipped, all, most_wait)
  local turn, tenant = first_turn("-inf", "+inf")
  local looked = all.count
  while turn and all.count < MAX_PASSED do
    local at = skipped[tenant] or 0
    local id = redis.call("ZRANGE", P .. "waiting:" .. tenant, at, at)[1]
    local s = id and redis.call("HMGET", P .. "seq:" .. id, "tokens_max", "prompt_len", "group", "payer",
      "needs", "late")
    local max_tokens, needs = s and tokens_in(s[1]), s and s[5] and cmsgpack.unpack(s[5]) or {}
    local served = id and can_serve(room.longest, room.features, max_tokens, needs)
    local late = served and is_late(tenant, s[3], s[4] or s[6], most_wait)
    if late then
      put_behind(tenant, id, most_wait)
      all.moved = true
    elseif served and all.count == looked then
      return turn, tenant, id, { max_tokens = max_tokens, prompt = tonumber(s[2]), payer = s[4],
        priority = tonumber(redis.call("HGET", P .. "group:" .. s[3], "priority")) }
    elseif served or not id then
      update_turn(tenant, skipped[tenant])
      return turn, tenant
    else
      all.elsewhere = all.elsewhere or engines_elsewhere(seat)
      if served_by_any(all.elsewhere, max_tokens, needs) then
        skipped[tenant] = at + 1 < MAX_PASSED_OF_TENANT and at + 1 or redis.call("ZCARD", P .. "waiting:" .. tenant)
      else
        end_unserved(tenant, id, needs)
        all.moved = true
      end
    end
    all.count = all.count + 1
  end
end

-- Claims waiting sequences for the seat, by turns, up to the first that does not fit into the room (`Room` in
-- services/messages.py). What later classes yield counts as room, too. Using it takes `requests` and `blocks` below zero,
-- and takes from the latest class first. A sequence that the seat's engine can never serve does not hold up those behind
-- it. Where no place is left, up to `guests` sequences are claimed, one for each tenant not in `tenants`.
-- Returns the claimed ids, and whether the next call finds other sequences at the front because this one ended or put
-- behind as many as one script may. Skipped sequences are at the front again then. `most_wait` is the bound on the
-- expected wait (us).
local function claim_sequences(seat, room, most_wait)
  local requests, blocks, guests = room.requests, room.blocks, room.guests
  local ids, most, skipped, all, present = {}, requests + guests, {}, { count = 0 }, {}
  for _, tenant in ipairs(room.tenants) do
    present[tenant] = true
  end
  for _, yield in ipairs(room.yields) do
    most = most + yield[2]
  end
  while #ids < most do
    local turn, tenant, id, s = next_claimable(seat, room, skipped, all, most_wait)
    if not turn then
      break
    end
    if id then
      local tokens = room.whole and s.max_tokens or s.prompt + redis.call("STRLEN", P .. "tok:" .. id) / 4
      local need, more_requests, more_blocks = math.ceil(tokens / room.block_size), yielded_to(room.yields, s.priority)
      if blocks + more_blocks < need then
        break
      elseif requests + more_requests < 1 then
        if guests < 1 or present[tenant] or is_line(s.priority) then
          break
        end
        guests = guests - 1
      end
      requests, blocks, present[tenant] = requests - 1, blocks - need, true
      assign(seat, id, tenant, turn, s)
      update_turn(tenant, skipped[tenant])
      ids[#ids + 1] = id
    end
  end
  for tenant in pairs(skipped) do
    update_turn(tenant)
  end
  return ids, all.moved and all.count >= MAX_PASSED
end
