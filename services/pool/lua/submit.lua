-- Puts a group of sequences into the pool, all or none, and attaches the gateway to them.
-- include: keys time memory counts bounds gateways bells turns
--
-- KEYS 1  the pool's prefix
-- ARGV 1  request (the group's id)
--      2  gateway
--      3  field of the idempotency key (<tenant> NUL <key>), or ""
--      4  body (opaque)
--      5  group: msgpack {bytes, inputs (msgpack), [prompt (packed tokens), ...], [sampling (opaque), ...],
--         [[id, number of its prompt, prompt + new tokens (text), asked (msgpack), tokens it has already (packed), their
--         log probabilities [opaque, ...]], ...]}; see keys for inputs and asked
--      6  bounds: msgpack {of all, of the tenant, seconds that a sequence may be expected to wait}; of the former each
--         [waiting sequences, waiting prompt tokens, streams, bytes, ended groups], 0 for none
--      7  us an ended group is kept
--      8  tenant
--      9  10  1 if resumable, 1 if in the background
--     11  us of grace
--     12  class, the least first
--     13  us from arrival to the first token that it should not exceed; 0: none
--     14  us that a class is worth in the queue, or "": by arrival alone
--     15  us since its arrival, of what the pool lost; else 0
--     16  us that it is ranked behind its place
--     17  us since its arrival after which it ends unless something of it has begun; 0: none
-- Reply   {request it lives under, 1 if it was there before, {} or the bound that refuses it (see fragments/bounds.lua)};
--         the error OOM while the server's memory is full and the group is not there
local request, gateway, key, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[8]
local bytes, inputs, prompts, samplings, sequences = unpack(cmsgpack.unpack(ARGV[5]))
local bounds = cmsgpack.unpack(ARGV[6])
local full = memory_full()
stamp()
forget_gateways()
expire(tonumber(ARGV[7]))

local earlier = redis.call("EXISTS", P .. "group:" .. request) == 1 and request
  or key ~= "" and redis.call("HGET", IDEMPOTENCY, key)
if earlier then
  register(gateway)
  for _, id in ipairs(cmsgpack.unpack(redis.call("HGET", P .. "group:" .. earlier, "ids"))) do
    if redis.call("HGET", P .. "seq:" .. id, "state") ~= "ended" then
      listen(gateway, id, earlier)
    end
  end
  settle()
  return { earlier, 1, {} }
end
if full then
  settle()
  return redis.error_reply("OOM the pool's server is at its maxmemory")
end

local prompt_tokens = 0
for _, sequence in ipairs(sequences) do
  prompt_tokens = prompt_tokens + #prompts[sequence[2]] / 4
end
local arrival = now - tonumber(ARGV[15])
local rank = ARGV[14] ~= "" and arrival + tonumber(ARGV[12]) * tonumber(ARGV[14]) + tonumber(ARGV[13])
local stream = ARGV[10] == "0" and ARGV[16] == "0" and 1 or 0
-- what the pool lost had been let in
local refusal = stream == 1 and ARGV[15] == "0" and waits_too_long(tenant, bounds[3], rank)
  or over_a_bound(tenant, bounds, { #sequences, prompt_tokens, stream, bytes })
if refusal then
  settle()
  return { request, 0, refusal }
end

register(gateway)
if not rank and arrival < now then
  rank = arrival
elseif not rank then
  rank = math.max(now, tonumber(redis.call("HGET", META, "rank") or 0) + 1)
  redis.call("HSET", META, "rank", rank + #sequences - 1)
end
rank = rank + tonumber(ARGV[16])
local class = ARGV[16] ~= "0" and "lines"
  or ARGV[14] ~= "" and string.format("%s %s %.0f", ARGV[12], ARGV[14], arrival)
local ids = {}
for i, sequence in ipairs(sequences) do
  local id, prompt, tokens_max, asked, tokens, logprobs = unpack(sequence)
  ids[i] = id
  redis.call("HSET", P .. "seq:" .. id, "state", "waiting", "group", request, "rank", rank + i - 1,
    "prompt_len", #prompts[prompt] / 4, "tokens_max", tokens_max, "asked", asked)
  if tokens ~= "" then
    redis.call("SET", P .. "tok:" .. id, tokens)
  end
  for _, one in ipairs(logprobs) do
    redis.call("RPUSH", P .. "lp:" .. id, one)
  end
  if class then
    redis.call("HSET", P .. "seq:" .. id, "class", class)
  end
  wait(tenant, id, rank + i - 1)
  redis.call("SADD", P .. "listening:" .. gateway, id)
end
local group_key = P .. "group:" .. request
redis.call("HSET", group_key, "ids", cmsgpack.pack(ids), "open", #ids, "bytes", bytes, "inputs", inputs,
  "body", ARGV[4], "tenant", tenant, "stream", stream, "resumable", ARGV[9], "background", ARGV[10], "grace", ARGV[11],
  "priority", ARGV[12], "ttft", ARGV[13], "arrival", arrival, "prompt1", prompts[1], "sampling1", samplings[1])
if ARGV[17] ~= "0" then
  redis.call("ZADD", DEADLINES, arrival + tonumber(ARGV[17]), request)
end
for i = 2, #prompts do
  redis.call("HSET", group_key, "prompt" .. i, prompts[i])
end
for i = 2, #samplings do
  redis.call("HSET", group_key, "sampling" .. i, samplings[i])
end
count_waiting(tenant, class, #ids, prompt_tokens, 1)
count(tenant, "streams", stream)
count(tenant, "bytes", bytes)
if key ~= "" then
  redis.call("HSET", group_key, "key", key)
  redis.call("HSET", IDEMPOTENCY, key, request)
end
settle()
ring()
return { request, 0, {} }
