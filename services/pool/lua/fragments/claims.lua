-- include: keys
-- What a scheduler needs of a claimed sequence: {id, rank, prompt, tokens, sampling, strikes}.
local function contents(id)
  local s = redis.call("HMGET", P .. "seq:" .. id, "rank", "prompt", "sampling", "strikes", "struck_at")
  local tokens = redis.call("GET", P .. "tok:" .. id) or ""
  local strikes = tonumber(s[5]) == #tokens / 4 and tonumber(s[4]) or 0
  return { id, s[1], s[2], tokens, s[3], strikes }
end

local function contents_of(ids)
  local claims = {}
  for i, id in ipairs(ids) do
    claims[i] = contents(id)
  end
  return claims
end

-- Gives the seat the earliest waiting sequences, up to the first that does not fit the room, as Select of the paper's
-- Algorithm 1 does. Returns their ids.
local function claim(seat, requests, blocks, block_size)
  local ids = {}
  if requests < 1 then
    return ids
  end
  for _, id in ipairs(redis.call("ZRANGE", WAITING, 0, requests - 1)) do
    blocks = blocks - math.ceil(tonumber(redis.call("HGET", P .. "seq:" .. id, "tokens_max")) / block_size)
    if blocks < 0 then
      break
    end
    redis.call("ZREM", WAITING, id)
    redis.call("HSET", P .. "seq:" .. id, "state", "running", "seat", seat)
    redis.call("SADD", P .. "running:" .. seat, id)
    ids[#ids + 1] = id
  end
  return ids
end
