-- include: notify counts drop needs
-- How sequences and groups end.

-- Removes the prompts and sampling parameters of a group that has ended; the sequences keep the lengths of their
-- prompts, which readers need. Returns the bytes that this frees.
local function drop_inputs(key, bytes, prompts, samplings)
  for i = 1, math.max(prompts, samplings) do
    redis.call("HDEL", key, "prompt" .. i, "sampling" .. i)
  end
  return bytes
end

-- Bytes that a sequence frees at its end: the room of tokens that were not generated.
local function unused_bytes(id, prompt_len, max_tokens, asked)
  local _, _, _, per_token, prompt_logprobs_bytes, token_bytes = unpack(cmsgpack.unpack(asked))
  local generated = redis.call("STRLEN", P .. "tok:" .. id) / 4
  return math.max(0, max_tokens - prompt_len - generated) * (token_bytes or per_token) + (generated == 0 and prompt_logprobs_bytes or 0)
end

-- Ends a group whose last sequence has ended.
local function end_group(request, group)
  redis.call("ZADD", ENDED, now, request)
  redis.call("ZADD", P .. "ended:" .. group.tenant, now, request)
  redis.call("ZREM", ABANDONED, request)
  redis.call("ZREM", DEADLINES, request)
  redis.call("HDEL", ADAPTED, request)
  add_to_counts(group.tenant, "ended_bytes", group.bytes)
  add_to_counts(group.tenant, "stored", 1)
  if group.stream == "1" then
    add_to_counts(group.tenant, "streams", -1)
  end
  if group.deleted then
    drop_group(request)
  end
end

-- Ends a sequence; every end of a sequence is here. The caller removes it from `waiting:<tenant>` or `running:<seat>`
-- and queues the event.
local function end_sequence(id, blob)
  local key = P .. "seq:" .. id
  local s = redis.call("HMGET", key, "group", "state", "prompt_len", "tokens_max", "asked")
  redis.call("HSET", key, "state", "ended", "end", blob)
  for _, box in ipairs(get_outboxes()) do
    redis.call("SREM", box.listening, id)
  end
  local request, group_key = s[1], P .. "group:" .. s[1]
  local g = redis.call("HMGET", group_key, "tenant", "bytes", "deleted", "inputs", "stream", "priority")
  if s[2] == "waiting" then
    count_waiting(g[1], g[6], 1, s[3], -1)
  else
    count_running(g[1], g[6], -1)
  end
  add_to_counts(g[1], "ended", 1)
  local freed = unused_bytes(id, tonumber(s[3]), tokens_in(s[4]), s[5])
  local last = redis.call("HINCRBY", group_key, "open", -1) == 0
  if last then
    freed = freed + drop_inputs(group_key, unpack(cmsgpack.unpack(g[4])))
  end
  redis.call("HINCRBY", group_key, "bytes", 0 - freed) -- not -freed: a server does not take "-0" for an integer
  add_to_counts(g[1], "bytes", -freed)
  if last then
    end_group(request, { tenant = g[1], bytes = tonumber(g[2]) - freed, deleted = g[3], stream = g[5] })
  end
end
