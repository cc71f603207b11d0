-- Commits tokens, renews the lease, reaps expired seats, claims sequences: what a scheduler does once an iteration.
-- include: keys time commits reap claims expire gateways bells
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  epoch
--      3  call number, above that of the exchange before; the same again is a repeat
--      4  commits: msgpack, a batch (see fragments/publish.lua)
--      5  6  7  room: sequences, blocks, tokens of a block
--      8  1 if the seat waits for its bell unless something was claimed
--      9  figures (opaque), or ""
--     10  counters: msgpack [name, increment (as text), ...]
--     11  gauges (opaque)
--     12  summary
--     13  us an ended group is kept
-- Reply   {1, claims, ids to end}, a claim being {id, rank, prompt (packed), tokens (packed), sampling};
--         {0} and nothing written if the epoch is not the seat's
local seat, call = ARGV[1], tonumber(ARGV[3])
local commits, counters = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[10])
local seat_key = P .. "seat:" .. seat
stamp()

local held = redis.call("HMGET", seat_key, "epoch", "call", "claimed", "lease")
if held[1] ~= ARGV[2] then
  return { 0 }
end
if call <= tonumber(held[2]) then
  local claimed = call == tonumber(held[2]) and cmsgpack.unpack(held[3]) or {}
  return { 1, contents_of(claimed), redis.call("SMEMBERS", P .. "cancelled:" .. seat) }
end

redis.call("ZADD", LEASES, now + tonumber(held[4]), seat)
forget_gateways()
expire(tonumber(ARGV[13]))
local foreign = commit_all(seat, commits)
local reclaimed = reap()
local claimed = claim(seat, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]))
publish()

redis.call("HSET", seat_key, "call", call, "claimed", cmsgpack.pack(claimed), "gauges", ARGV[11], "summary", ARGV[12])
if ARGV[9] ~= "" then
  redis.call("HSET", seat_key, "figures", ARGV[9])
  redis.call("HSET", META, "figures", ARGV[9])
end
for i = 1, #counters, 2 do
  redis.call("HINCRBYFLOAT", COUNTERS, counters[i], counters[i + 1])
end

redis.call("SREM", IDLE, seat)
if reclaimed > 0 and redis.call("EXISTS", WAITING) == 1 then
  ring()
end
redis.call("DEL", P .. "bell:" .. seat)
if ARGV[8] == "1" and #claimed == 0 then
  redis.call("SADD", IDLE, seat)
end
for _, id in ipairs(redis.call("SMEMBERS", P .. "cancelled:" .. seat)) do
  foreign[#foreign + 1] = id
end
return { 1, contents_of(claimed), foreign }
