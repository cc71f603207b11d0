-- Puts a group of sequences into the pool, all or none, and attaches the gateway to them.
-- include: keys time memory expire gateways bells
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
--     13  class, the least first
--     14  us from arrival to the first token that it should not exceed; 0: none
--     15  us that a class is worth in the queue, or "": by arrival alone
--     16  us since its arrival, of what the pool lost; else 0
--     17  us that it is ranked behind its place
--     18  us since its arrival after which it ends unless something of it has begun; 0: none
-- Reply   {request it lives under, 1 if it was there before, "" or the bound that refuses it: "waiting", "bytes"}; the
--         error OOM while the server's memory is full and the group is not there
local request, gateway, key = ARGV[1], ARGV[2], ARGV[3]
local sequences = cmsgpack.unpack(ARGV[5])
local full = memory_full()
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
if full then
  return redis.error_reply("OOM the pool's server is at its maxmemory")
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
local arrival, rank = now - tonumber(ARGV[16]), nil
if ARGV[15] ~= "" then
  rank = arrival + tonumber(ARGV[13]) * tonumber(ARGV[15]) + tonumber(ARGV[14])
elseif arrival < now then
  rank = arrival
else
  rank = math.max(now, tonumber(redis.call("HGET", META, "rank") or 0) + 1)
  redis.call("HSET", META, "rank", rank + #ids - 1)
end
rank = rank + tonumber(ARGV[17])
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
redis.call("HINCRBY", META, "bytes", bytes)
redis.call("HSET", P .. "group:" .. request, "ids", cmsgpack.pack(ids), "open", #ids, "bytes", bytes, "body", ARGV[4],
  "tenant", ARGV[9], "resumable", ARGV[10], "background", ARGV[11], "grace", ARGV[12], "priority", ARGV[13],
  "ttft", ARGV[14], "arrival", arrival)
if ARGV[18] ~= "0" then
  redis.call("ZADD", DEADLINES, arrival + tonumber(ARGV[18]), request)
end
if key ~= "" then
  redis.call("HSET", P .. "group:" .. request, "key", key)
  redis.call("HSET", IDEMPOTENCY, key, request)
end
ring()
return { request, 0, "" }
