-- include: keys time reap publish end_sequence counts
local PASSED_MOST = 1000 -- sequences that one script passes over or ends because they are too large
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
local function end_too_large(id)
  redis.call("ZREM", WAITING, id)
  tell_end(id, redis.call("STRLEN", P .. "tok:" .. id) / 4, END_TOO_LARGE)
  end_sequence(id, END_TOO_LARGE)
end

-- Gives the seat the waiting sequences of the least ranks, up to the first that does not fit the room, as Select of the
-- paper's Algorithm 1 does. What later classes yield is room too; used, it leaves `requests` and `blocks` below zero,
-- and the latest class is the first to be taken from. A sequence that can never fit the seat's engine, of `slots`
-- tokens, does not hold up those behind it: it is left to another seat, or ends where no seat can hold it.
-- Returns the ids that were given.
local function claim(seat, requests, blocks, block_size, whole, yields, slots)
  local ids, most, left, ended, elsewhere = {}, requests, 0, 0, nil
  for _, yield in ipairs(yields) do
    most = most + yield[2]
  end
  while #ids < most and left + ended < PASSED_MOST do
    local id = redis.call("ZRANGE", WAITING, left, left)[1]
    if not id then
      break
    end
    local s = redis.call("HMGET", P .. "seq:" .. id, "tokens_max", "prompt_len", "group")
    local longest = tonumber(s[1])
    if slots > 0 and longest > slots then
      elsewhere = elsewhere or slots_elsewhere(seat)
      if longest <= elsewhere then
        left = left + 1
      else
        end_too_large(id)
        ended = ended + 1
      end
    else
      local tokens = whole and longest or tonumber(s[2]) + redis.call("STRLEN", P .. "tok:" .. id) / 4
      local need, more_requests, more_blocks = math.ceil(tokens / block_size), given(yields, s[3])
      if requests + more_requests < 1 or blocks + more_blocks < need then
        break
      end
      requests, blocks = requests - 1, blocks - need
      redis.call("ZREM", WAITING, id)
      redis.call("HSET", P .. "seq:" .. id, "state", "running", "seat", seat)
      redis.call("SADD", P .. "running:" .. seat, id)
      count_waiting(redis.call("HGET", P .. "group:" .. s[3], "tenant"), s[2], -1)
      ids[#ids + 1] = id
    end
  end
  return ids
end
