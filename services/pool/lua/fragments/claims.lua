-- include: keys time
-- What a scheduler needs of a claimed sequence: {id, rank, prompt, tokens, sampling, strikes, class, us to the first
-- token, us since arrival, tenant}.
local function contents(id)
  local s = redis.call("HMGET", P .. "seq:" .. id, "rank", "prompt", "sampling", "strikes", "struck_at", "group")
  local group = redis.call("HMGET", P .. "group:" .. s[6], "priority", "ttft", "arrival", "tenant")
  local tokens = redis.call("GET", P .. "tok:" .. id) or ""
  local strikes = tonumber(s[5]) == #tokens / 4 and tonumber(s[4]) or 0
  return { id, s[1], s[2], tokens, s[3], strikes, tonumber(group[1]), tonumber(group[2]), now - tonumber(group[3]),
    group[4] }
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

-- Gives the seat the waiting sequences of the least ranks, up to the first that does not fit the room, as Select of the
-- paper's Algorithm 1 does. What later classes yield is room too; used, it leaves `requests` and `blocks` below zero,
-- and the latest class is the first to be taken from. Returns their ids.
local function claim(seat, requests, blocks, block_size, whole, yields)
  local ids, most = {}, requests
  for _, yield in ipairs(yields) do
    most = most + yield[2]
  end
  if most < 1 then
    return ids
  end
  for _, id in ipairs(redis.call("ZRANGE", WAITING, 0, most - 1)) do
    local s = redis.call("HMGET", P .. "seq:" .. id, "tokens_max", "prompt_len", "group")
    local tokens = whole and tonumber(s[1]) or tonumber(s[2]) + redis.call("STRLEN", P .. "tok:" .. id) / 4
    local need, more_requests, more_blocks = math.ceil(tokens / block_size), given(yields, s[3])
    if requests + more_requests < 1 or blocks + more_blocks < need then
      break
    end
    requests, blocks = requests - 1, blocks - need
    redis.call("ZREM", WAITING, id)
    redis.call("HSET", P .. "seq:" .. id, "state", "running", "seat", seat)
    redis.call("SADD", P .. "running:" .. seat, id)
    ids[#ids + 1] = id
  end
  return ids
end
