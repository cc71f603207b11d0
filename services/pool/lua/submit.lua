-- Puts a group of sequences into the pool, all or none, and attaches the gateway to them.
-- include: keys time expire gateways bells
--
-- KEYS 1  the pool's prefix
-- ARGV 1  request (the group's id)
--      2  gateway
--      3  field of the idempotency key (<tenant> NUL <key>), or ""
--      4  body (opaque)
--      5  sequences: msgpack [[id, prompt (packed tokens), prompt + new tokens, bytes, sampling (opaque),
--         tokens it has already (packed), their log probabilities [opaque, ...]], ...]
--      6  most waiting sequences
--      7  most bytes
--      8  us an ended group is kept
--      9  tenant
--     10  11  1 if resumable, 1 if in the background
--     12  us of grace
-- Reply   {request it lives under, 1 if it was there before, "" or the bound that refuses it: "waiting", "bytes"}
local request, gateway, key = ARGV[1], ARGV[2], ARGV[3]
local sequences = cmsgpack.unpack(ARGV[5])
stamp()
forget_gateways()
expire(tonumber(ARGV[8]))

local earlier = redis.call("EXISTS", P .. "group:" .. request) == 1 and request
  or key ~= "" and redis.call("HGET", IDEMPOTENCY, key)
if earlier then
  register(gateway)
  for _, id in ipairs(cmsgpack.unpack(redis.call("HGET", P .. "group:" .. earlier, "ids"))) do
    if redis.call("HGET", P .. "seq:" .. id, "state") ~= "ended" then
      listen(gateway, id, earlier)
    end
  end
  return { earlier, 1, "" }
end

local ids, bytes = {}, #ARGV[4]
for i, sequence in ipairs(sequences) do
  ids[i] = sequence[1]
  bytes = bytes + sequence[4]
end
if redis.call("ZCARD", WAITING) + #ids > tonumber(ARGV[6]) then
  return { request, 0, "waiting" }
end
if not make_place(bytes, tonumber(ARGV[7])) then
  return { request, 0, "bytes" }
end

register(gateway)
local rank = math.max(now, tonumber(redis.call("HGET", META, "rank") or 0) + 1)
for i, sequence in ipairs(sequences) do
  local id = sequence[1]
  redis.call("HSET", P .. "seq:" .. id, "state", "waiting", "group", request, "rank", rank + i - 1,
    "prompt", sequence[2], "prompt_len", #sequence[2] / 4, "tokens_max", sequence[3], "sampling", sequence[5])
  if sequence[6] ~= "" then
    redis.call("SET", P .. "tok:" .. id, sequence[6])
  end
  for _, one in ipairs(sequence[7]) do
    redis.call("RPUSH", P .. "lp:" .. id, one)
  end
  redis.call("ZADD", WAITING, rank + i - 1, id)
  redis.call("SADD", P .. "listening:" .. gateway, id)
end
redis.call("HSET", META, "rank", rank + #ids - 1)
redis.call("HINCRBY", META, "bytes", bytes)
redis.call("HSET", P .. "group:" .. request, "ids", cmsgpack.pack(ids), "open", #ids, "bytes", bytes, "body", ARGV[4],
  "tenant", ARGV[9], "resumable", ARGV[10], "background", ARGV[11], "grace", ARGV[12])
if key ~= "" then
  redis.call("HSET", P .. "group:" .. request, "key", key)
  redis.call("HSET", IDEMPOTENCY, key, request)
end
ring()
return { request, 0, "" }
