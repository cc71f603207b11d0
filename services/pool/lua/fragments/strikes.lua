-- include: keys publish end_sequence
local STRIKES_MOST = 3

-- The seat's engine died while it ran this sequence. A strike counts up while no token was committed since the last one.
-- With the last strike the sequence ends, and is the seat's no more; a cancelled one is left as it is.
local function strike(seat, id)
  local key, tokens = P .. "seq:" .. id, redis.call("STRLEN", P .. "tok:" .. id) / 4
  local s = redis.call("HMGET", key, "strikes", "struck_at", "cancelled")
  if s[3] then
    return
  end
  local strikes = 1 + (tonumber(s[2]) == tokens and tonumber(s[1]) or 0)
  redis.call("HSET", key, "strikes", strikes, "struck_at", tokens)
  if strikes >= STRIKES_MOST then
    redis.call("SREM", P .. "running:" .. seat, id)
    tell_end(id, tokens, END_POISON)
    end_sequence(id, END_POISON)
    redis.call("HINCRBYFLOAT", COUNTERS, "orca:poisoned_requests", 1)
  end
end
