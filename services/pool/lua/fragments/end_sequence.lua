-- include: keys time publish counts expire
-- Nothing of this group is computed any more: its prompts and settings are dropped. Whoever reads what it became needs
-- the lengths of its prompts, which its sequences keep. Returns the bytes that are free.
local function drop_inputs(key, bytes, prompts, samplings)
  for i = 1, math.max(prompts, samplings) do
    redis.call("HDEL", key, "prompt" .. i, "sampling" .. i)
  end
  return bytes
end

-- Bytes that a sequence gives back at its end: the place of tokens that were not made.
local function unmade(id, prompt_len, tokens_max, asked)
  local _, _, _, place, scores = unpack(cmsgpack.unpack(asked))
  local made = redis.call("STRLEN", P .. "tok:" .. id) / 4
  return math.max(0, tokens_max - prompt_len - made) * place + (made == 0 and scores or 0)
end

-- All of the group has ended.
local function end_group(request, group)
  redis.call("ZADD", ENDED, now, request)
  redis.call("ZADD", P .. "ended:" .. group.tenant, now, request)
  redis.call("ZREM", ABANDONED, request)
  redis.call("ZREM", DEADLINES, request)
  count(group.tenant, "ended_bytes", group.bytes)
  count(group.tenant, "stored", 1)
  if group.stream == "1" then
    count(group.tenant, "streams", -1)
  end
  if group.deleted then
    drop(request)
  end
end

-- The one place where a sequence ends. The caller took it from `waiting` or `running:<seat>` and tells listeners.
local function end_sequence(id, blob)
  local key = P .. "seq:" .. id
  local s = redis.call("HMGET", key, "group", "state", "prompt_len", "tokens_max", "asked", "class")
  redis.call("HSET", key, "state", "ended", "end", blob)
  redis.call("HDEL", key, "seat")
  for _, box in ipairs(all_outboxes()) do
    redis.call("SREM", box.listening, id)
  end
  local request, group_key = s[1], P .. "group:" .. s[1]
  local g = redis.call("HMGET", group_key, "tenant", "bytes", "deleted", "inputs", "stream")
  if s[2] == "waiting" then
    count_waiting(g[1], s[6], 1, s[3], -1)
  else
    count_running(g[1], s[6], -1)
  end
  count(g[1], "ended", 1)
  local less = unmade(id, tonumber(s[3]), tonumber(s[4]), s[5])
  local last = redis.call("HINCRBY", group_key, "open", -1) == 0
  if last then
    less = less + drop_inputs(group_key, unpack(cmsgpack.unpack(g[4])))
  end
  redis.call("HINCRBY", group_key, "bytes", 0 - less) -- not -less: "-0" is no integer to a server
  count(g[1], "bytes", -less)
  if last then
    end_group(request, { tenant = g[1], bytes = tonumber(g[2]) - less, deleted = g[3], stream = g[5] })
  end
end
