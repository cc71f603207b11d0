-- Puts a group of sequences into the pool, all or none, and makes the gateway listen to them.
-- include: bounds turns gateways notify
--
-- KEYS 1  the pool's prefix
-- ARGV 1  request (the group's id)
--      2  gateway
--      3  field of the idempotency key (<tenant> NUL <key>), or ""
--      4  body (opaque)
--      5  group: msgpack {bytes, inputs (msgpack), [prompt (packed tokens), ...], [sampling (opaque), ...],
--         [[id, number of its prompt, prompt + new tokens (text), asked (msgpack), tokens that it has already (packed),
--         their log probabilities [opaque, ...]], ...]}; README.md describes inputs and asked
--      6  bounds: msgpack {of all tenants, of this tenant, seconds that a sequence may be expected to wait}; the first two
--         are [waiting sequences, waiting prompt tokens, streams, bytes, ended groups], 0 for no bound
--      7  us that an ended group is kept
--      8  tenant
--      9  10  1 if resumable, 1 if in the background
--     11  grace, us
--     12  class; the lowest goes first
--     13  target of the time from arrival to the first token, us; 0: none
--     14  us that one class is worth in the queue, or "" to order by arrival alone
--     15  us since the arrival of a request that the pool lost; else 0
--     16  us added to its rank
--     17  us from its arrival to its deadline, at which it ends unless a sequence of it was claimed; 0: none
--     18  its trace context (opaque), or ""
-- Reply   {request under which the group lives, 1 if it existed, {} or the refusal (see fragments/bounds.lua)};
--         the error OOM if the server's memory is full and the group does not exist
local request, gateway, key, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[8]
local bytes, inputs, prompts, samplings, sequences = unpack(cmsgpack.unpack(ARGV[5]))
local bounds = cmsgpack.unpack(ARGV[6])
local full = memory_full()
begin()
forget_expired_gateways()
drop_expired_groups(tonumber(ARGV[7]))

local earlier = redis.call("EXISTS", P .. "group:" .. request) == 1 and request
  or key ~= "" and redis.call("HGET", IDEMPOTENCY, key)
if earlier then
  register_gateway(gateway)
  for _, id in ipairs(cmsgpack.unpack(redis.call("HGET", P .. "group:" .. earlier, "ids"))) do
    if redis.call("HGET", P .. "seq:" .. id, "state") ~= "ended" then
      add_listener(gateway, id, earlier)
    end
  end
  save_counts()
  return { earlier, 1, {} }
end
if full then
  save_counts()
  return redis.error_reply("OOM the pool's server is at its maxmemory")
end

local prompt_tokens = 0
for _, sequence in ipairs(sequences) do
  prompt_tokens = prompt_tokens + #prompts[sequence[2]] / 4
end
local arrival = now - tonumber(ARGV[15])
local rank = ARGV[14] ~= "" and arrival + tonumber(ARGV[12]) * tonumber(ARGV[14]) + tonumber(ARGV[13])
local stream = ARGV[10] == "0" and ARGV[16] == "0" and 1 or 0
-- a request that the pool lost had passed this check
local refusal = stream == 1 and ARGV[15] == "0" and refuse_for_wait(tenant, bounds[3], rank)
  or refuse_for_bounds(tenant, bounds, { #sequences, prompt_tokens, stream, bytes })
if refusal then
  save_counts()
  return { request, 0, refusal }
end

register_gateway(gateway)
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
  local id, prompt, max_tokens, asked, tokens, logprobs = unpack(sequence)
  ids[i] = id
  redis.call("HSET", P .. "seq:" .. id, "state", "waiting", "group", request, "rank", rank + i - 1,
    "prompt_len", #prompts[prompt] / 4, "tokens_max", max_tokens, "asked", asked)
  if tokens ~= "" then
    redis.call("SET", P .. "tok:" .. id, tokens)
  end
  for _, one in ipairs(logprobs) do
    redis.call("RPUSH", P .. "lp:" .. id, one)
  end
  if class then
    redis.call("HSET", P .. "seq:" .. id, "class", class)
  end
  enqueue(tenant, id, rank + i - 1)
  redis.call("SADD", P .. "listening:" .. gateway, id)
end
local group_key = P .. "group:" .. request
redis.call("HSET", group_key, "ids", cmsgpack.pack(ids), "open", #ids, "bytes", bytes, "inputs", inputs,
  "body", ARGV[4], "tenant", tenant, "stream", stream, "resumable", ARGV[9], "background", ARGV[10], "grace", ARGV[11],
  "priority", ARGV[12], "ttft", ARGV[13], "arrival", arrival, "prompt1", prompts[1], "sampling1", samplings[1])
if ARGV[18] ~= "" then
  redis.call("HSET", group_key, "trace", ARGV[18])
end
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
add_to_counts(tenant, "streams", stream)
add_to_counts(tenant, "bytes", bytes)
if key ~= "" then
  redis.call("HSET", group_key, "key", key)
  redis.call("HSET", IDEMPOTENCY, key, request)
end
save_counts()
wake_idle_seats()
return { request, 0, {} }
