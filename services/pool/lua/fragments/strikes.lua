-- include: keys publish end_sequence
local STRIKES_MOST = 3
-- Soft strikes also hit who only ran where a machine went down, a pod was moved or a network parted. That this happens
-- so often in a row, before a request that runs alone from the second time on has one token, is no chance any more.
local SOFT_STRIKES_MOST = 6
local SUSPECT = 2 -- strikes of both kinds from which on a scheduler runs a sequence alone
local BATCH_CLASS = 9 -- of lines of batches, which run only while nobody else is there

-- A sequence's strikes of both kinds since its last token, how many of them are soft, its tokens, and whether it is
-- cancelled.
local function strikes_of(id)
  local tokens = redis.call("STRLEN", P .. "tok:" .. id) / 4
  local s = redis.call("HMGET", P .. "seq:" .. id, "strikes", "soft", "struck_at", "cancelled")
  if tonumber(s[3]) == tokens then
    return tonumber(s[1]), tonumber(s[2]), tokens, s[4]
  end
  return 0, 0, tokens, s[4]
end

-- The seat's engine died while it ran this sequence; or, where the strike is `soft` (0 or 1), its owner did. Strikes count
-- up while no token was committed since the last one. With the last strike the sequence ends, and is the seat's no
-- more; a cancelled one is left as it is.
local function strike(seat, id, soft)
  local strikes, softs, tokens, cancelled = strikes_of(id)
  if cancelled then
    return
  end
  strikes, softs = strikes + 1, softs + soft
  redis.call("HSET", P .. "seq:" .. id, "strikes", strikes, "soft", softs, "struck_at", tokens)
  local blob = strikes - softs >= STRIKES_MOST and END_POISON or softs >= SOFT_STRIKES_MOST and END_SEATS_LOST
  if blob then
    redis.call("SREM", P .. "running:" .. seat, id)
    tell_end(id, tokens, blob)
    end_sequence(id, blob)
    redis.call("HINCRBYFLOAT", COUNTERS, "orca:poisoned_requests", 1)
  end
end

-- The seat's owner died, or fell silent past its lease, and nobody says over what: what it may have been computing gets
-- a soft strike. That is the suspect of the least rank, since it runs alone, or, where there is none, all.
local function strike_softly(seat)
  local lines, others, first, least = {}, {}, nil, math.huge
  for _, id in ipairs(redis.call("SMEMBERS", P .. "running:" .. seat)) do
    local s = redis.call("HMGET", P .. "seq:" .. id, "rank", "group")
    local class = tonumber(redis.call("HGET", P .. "group:" .. s[2], "priority"))
    local list = class == BATCH_CLASS and lines or others
    list[#list + 1] = { id, tonumber(s[1]) }
  end
  local ids = {}
  for _, one in ipairs(#others > 0 and others or lines) do
    local strikes = strikes_of(one[1])
    ids[#ids + 1] = one[1]
    if strikes >= SUSPECT and one[2] < least then
      first, least = one[1], one[2]
    end
  end
  for _, id in ipairs(first and { first } or ids) do
    strike(seat, id, 1)
  end
end
