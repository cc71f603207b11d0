-- Puts a group of sequences into the pool, all or none, and makes the gateway listen to them.
-- include: bounds turns gateways notify needs
--
-- Arguments
--   request        the group's id
--   gateway, tenant
--   key            field of the idempotency key (<tenant> NUL <key>), or false
--   body           opaque
--   bytes          that the group counts for
--   inputs         msgpack; README.md describes it and `asked`
--   prompts        [packed tokens, ...]
--   samplings      [opaque, ...]
--   sequences      [[id, number of its prompt, prompt + new tokens, asked (msgpack), tokens that it has already (packed),
--                  their log probabilities [opaque, ...], features that it needs [name, ...]], ...]
--   bounds         {of all tenants, of this tenant, seconds that a sequence may be expected to wait}; the first two are
--                  [waiting sequences, waiting prompt tokens, streams, bytes, ended groups], 0 for no bound
--   keep_ended     us that an ended group is kept
--   resumable, background
--   grace          us
--   priority       its class; the lowest goes first
--   ttft           target of the time from arrival to the first token, us; 0: none
--   ranked         whether it is ranked by its class and target, not by its arrival alone
--   ageing         us that one class is worth in the queue; 0: the order is by arrival alone
--   waited         us since the arrival of a request that the pool lost; else 0
--   queue_timeout  us from its arrival to its deadline, at which it ends unless a sequence of it was claimed; 0: none
--   adapter        the digest of its adapter, or ""
--   trace          its trace context (opaque), or ""
--   remember       whether drafts of its tenant's later requests may repeat its text
-- Reply, by name; the error OOM if the server's memory is full and the group does not exist
--   request        under which the group lives
--   existed        1 if it existed
--   refusal        {} or, by name, the fields of `Refusal` in services/requests.py
local request, gateway, key, tenant = args.request, args.gateway, args.key, args.tenant
local prompts, samplings, sequences, bytes = args.prompts, args.samplings, args.sequences, args.bytes
local full = memory_full()
begin()
forget_expired_gateways()
drop_expired_groups(args.keep_ended)

local earlier = redis.call("EXISTS", P .. "group:" .. request) == 1 and request
  or key and redis.call("HGET", IDEMPOTENCY, key)
if earlier then
  register_gateway(gateway)
  for _, id in ipairs(cmsgpack.unpack(redis.call("HGET", P .. "group:" .. earlier, "ids"))) do
    if redis.call("HGET", P .. "seq:" .. id, "state") ~= "ended" then
      add_listener(gateway, id, earlier)
    end
  end
  save_counts()
  return by_name({ request = earlier, existed = 1, refusal = {} })
end
if full then
  save_counts()
  return redis.error_reply("OOM the pool's server is at its maxmemory")
end

local prompt_tokens = 0
for _, sequence in ipairs(sequences) do
  prompt_tokens = prompt_tokens + #prompts[sequence[2]] / 4
end
local arrival, priority, ageing = now - args.waited, args.priority, args.ageing
local rank = args.ranked and arrival + priority * ageing + args.ttft
local stream = not args.background and not is_line(priority) and 1 or 0
-- a request that the pool lost had passed this check
local refusal = stream == 1 and args.waited == 0 and refuse_for_wait(tenant, args.bounds[3], rank)
  or refuse_for_bounds(tenant, args.bounds, { #sequences, prompt_tokens, stream, bytes })
if refusal then
  save_counts()
  return by_name({ request = request, existed = 0, refusal = refusal })
end

register_gateway(gateway)
if not rank and arrival < now then
  rank = arrival
elseif not rank then
  rank = math.max(now, tonumber(redis.call("HGET", META, "rank") or 0) + 1)
  redis.call("HSET", META, "rank", rank + #sequences - 1)
end
if is_line(priority) then
  rank = rank + BEHIND
end
local ids = {}
for i, sequence in ipairs(sequences) do
  local id, prompt, max_tokens, asked, tokens, logprobs, needs = unpack(sequence)
  ids[i] = id
  redis.call("HSET", P .. "seq:" .. id, "state", "waiting", "group", request, "rank", rank + i - 1,
    "prompt_len", #prompts[prompt] / 4, "tokens_max", far_if(needs, max_tokens), "asked", asked)
  if #needs > 0 then
    redis.call("HSET", P .. "seq:" .. id, "needs", cmsgpack.pack(needs))
  end
  if tokens ~= "" then
    redis.call("SET", P .. "tok:" .. id, tokens)
  end
  for _, one in ipairs(logprobs) do
    redis.call("RPUSH", P .. "lp:" .. id, one)
  end
  redis.call("SADD", P .. "listening:" .. gateway, id)
end
local group_key = P .. "group:" .. request
redis.call("HSET", group_key, "ids", cmsgpack.pack(ids), "open", #ids, "bytes", bytes, "inputs", args.inputs,
  "body", args.body, "tenant", tenant, "stream", stream, "resumable", args.resumable and 1 or 0,
  "background", args.background and 1 or 0, "grace", args.grace, "priority", priority, "ttft", args.ttft,
  "ageing", ageing, "arrival", arrival, "prompt1", prompts[1], "sampling1", samplings[1])
if args.trace ~= "" then
  redis.call("HSET", group_key, "trace", args.trace)
end
if args.remember then
  redis.call("HSET", group_key, "remember", 1)
end
if args.adapter ~= "" then
  redis.call("HSET", ADAPTED, request, args.adapter)
end
if args.queue_timeout > 0 then
  redis.call("ZADD", DEADLINES, arrival + args.queue_timeout, request)
end
for i = 2, #prompts do
  redis.call("HSET", group_key, "prompt" .. i, prompts[i])
end
for i = 2, #samplings do
  redis.call("HSET", group_key, "sampling" .. i, samplings[i])
end
for i, id in ipairs(ids) do
  enqueue(tenant, id, rank + i - 1)
end
count_waiting(tenant, priority, #ids, prompt_tokens, 1)
add_to_counts(tenant, "streams", stream)
add_to_counts(tenant, "bytes", bytes)
if key then
  redis.call("HSET", group_key, "key", key)
  redis.call("HSET", IDEMPOTENCY, key, request)
end
save_counts()
wake_idle_seats()
return by_name({ request = request, existed = 0, refusal = {} })
