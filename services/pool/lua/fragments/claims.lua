-- include: keys time reap publish end_sequence turns counts
local PASSED_MOST = 1000 -- sequences that one script passes over or ends because they are too large
local PASSED_OF_ONE = 500 -- of one tenant, which has no turn in this script then: a seat has turns for others
local COMES_BACK = 60000000 -- us in which a seat that lost its owner may have one again

-- What a scheduler needs of a claimed sequence: {id, rank, prompt, tokens, sampling, strikes, class, us to the first
-- token, us since arrival, tenant, choice, most new tokens}.
local function contents(id)
  local s = redis.call("HMGET", P .. "seq:" .. id, "rank", "asked", "strikes", "struck_at", "group", "tokens_max",
    "prompt_len")
  local prompt, sampling, choice = unpack(cmsgpack.unpack(s[2]))
  local group = redis.call("HMGET", P .. "group:" .. s[5], "priority", "ttft", "arrival", "tenant",
    "prompt" .. prompt, "sampling" .. sampling)
  local tokens = redis.call("GET", P .. "tok:" .. id) or ""
  local strikes = tonumber(s[4]) == #tokens / 4 and tonumber(s[3]) or 0
  return { id, s[1], group[5], tokens, group[6], strikes, tonumber(group[1]), tonumber(group[2]),
    now - tonumber(group[3]), group[4], choice, s[6] - s[7] }
end

local function contents_of(ids)
  local claims = {}
  for i, id in ipairs(ids) do
    claims[i] = contents(id)
  end
  return claims
end

-- What of `yields` is for a sequence of this group: sequences and blocks of all classes later than its own.
local function given(yields, request)
  local requests, blocks = 0, 0
  if #yields > 0 then
    local class = tonumber(redis.call("HGET", P .. "group:" .. request, "priority"))
    for _, yield in ipairs(yields) do
      if yield[1] > class then
        requests, blocks = requests + yield[2], blocks + yield[3]
      end
    end
  end
  return requests, blocks
end

-- The most tokens that fit into the engine of another seat, one that has an owner or may soon have one again. An
-- engine that is not known may hold any number.
local function slots_elsewhere(seat)
  local most = 0
  local names = redis.call("ZRANGEBYSCORE", SEATS, now + SEAT_KEPT - COMES_BACK, "+inf")
  for _, name in ipairs(names) do
    if name ~= seat then
      most = math.max(most, tonumber(redis.call("HGET", P .. "seat:" .. name, "slots") or math.huge))
    end
  end
  return most
end

-- Ends a waiting sequence that no engine can hold.
local function end_too_large(tenant, id)
  unwait(tenant, id)
  tell_end(id, redis.call("STRLEN", P .. "tok:" .. id) / 4, END_TOO_LARGE)
  end_sequence(id, END_TOO_LARGE)
end

-- Gives the seat a sequence at its tenant's turn. The tenant is charged for the prompt, once: what is computed again
-- because a seat died is not its fault.
local function give(seat, id, tenant, turn, s)
  local counter, count = s.class == "lines" and "lines" or "served", tonumber(string.sub(turn, 1, 16))
  if not s.payer then
    if count > tonumber(redis.call("HGET", META, counter) or 0) then
      redis.call("HSET", META, counter, string.format("%.0f", count))
    end
    count = count + PROMPT_TOKEN * s.prompt
  end
  redis.call("ZREM", P .. "waiting:" .. tenant, id)
  count_claim(tenant, s.class, s.prompt)
  redis.call("HSET", P .. "turn:" .. tenant, counter, string.format("%.0f", count), "last", now)
  redis.call("HSET", P .. "seq:" .. id, "state", "running", "seat", seat, "payer", counter .. ":" .. tenant)
  redis.call("SADD", P .. "running:" .. seat, id)
end

-- Whose turn it is, and the first of its sequences that the seat's engine can hold. Those before it are passed over,
-- being for another seat, or end where no seat can hold them. `passed` counts those passed over by tenant, `all.count`
-- those of both kinds. Returns nothing where nobody has a turn, and no sequence where turns are to be looked at anew.
local function next_turn(seat, slots, passed, all)
  local turn, tenant = first_turn("-inf", "+inf")
  local looked = all.count
  while turn and all.count < PASSED_MOST do
    local at = passed[tenant] or 0
    local id = redis.call("ZRANGE", P .. "waiting:" .. tenant, at, at)[1]
    local s = id and redis.call("HMGET", P .. "seq:" .. id, "tokens_max", "prompt_len", "group", "payer", "class")
    local longest = s and tonumber(s[1])
    if id and all.count == looked and (slots == 0 or longest <= slots) then
      return turn, tenant, id, { longest = longest, prompt = tonumber(s[2]), group = s[3], payer = s[4], class = s[5] }
    elseif not id or slots == 0 or longest <= slots then
      place(tenant, passed[tenant])
      return turn, tenant
    end
    all.elsewhere = all.elsewhere or slots_elsewhere(seat)
    if longest <= all.elsewhere then
      passed[tenant] = at + 1 < PASSED_OF_ONE and at + 1 or redis.call("ZCARD", P .. "waiting:" .. tenant)
    else
      end_too_large(tenant, id)
      all.ended = true
    end
    all.count = all.count + 1
  end
end

-- Gives the seat the waiting sequences whose turn it is, up to the first that does not fit the room, as Select of the
-- paper's Algorithm 1 does. What later classes yield is room too; used, it leaves `requests` and `blocks` below zero,
-- and the latest class is the first to be taken from. A sequence that can never fit the seat's engine, of `slots`
-- tokens, does not hold up those behind it. Where no place is left, `guests` may come in, one each of tenants that are not
-- among `tenants`. Returns the ids that were given, and whether the next call finds other sequences at the front: this one
-- ended as many as one script may. Those passed over are at the front again.
local function claim(seat, requests, blocks, block_size, whole, yields, slots, guests, tenants)
  local ids, most, passed, all, here = {}, requests + guests, {}, { count = 0 }, {}
  for _, tenant in ipairs(tenants) do
    here[tenant] = true
  end
  for _, yield in ipairs(yields) do
    most = most + yield[2]
  end
  while #ids < most do
    local turn, tenant, id, s = next_turn(seat, slots, passed, all)
    if not turn then
      break
    end
    if id then
      local tokens = whole and s.longest or s.prompt + redis.call("STRLEN", P .. "tok:" .. id) / 4
      local need, more_requests, more_blocks = math.ceil(tokens / block_size), given(yields, s.group)
      if blocks + more_blocks < need then
        break
      elseif requests + more_requests < 1 then
        if guests < 1 or here[tenant] or s.class == "lines" then
          break
        end
        guests = guests - 1
      end
      requests, blocks, here[tenant] = requests - 1, blocks - need, true
      give(seat, id, tenant, turn, s)
      place(tenant, passed[tenant])
      ids[#ids + 1] = id
    end
  end
  for tenant in pairs(passed) do
    place(tenant)
  end
  return ids, all.ended and all.count >= PASSED_MOST
end
