-- Commits tokens, renews the lease, reaps expired seats, claims sequences: what a scheduler does once an iteration.
-- include: keys time commits holds reap cancel_group deadlines claims expire gateways bells counts
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  epoch
--      3  call number, one above that of the exchange before; the same again is a repeat. One further above: the server
--         lost exchanges it had answered, so nothing is claimed unless the caller says what it holds
--      4  commits: msgpack, a batch (see fragments/publish.lua)
--      5  6  7  room: sequences, blocks, tokens of a block
--      8  1 if a sequence takes blocks for its whole length, 0 if for the tokens it has
--      9  what is yielded to earlier classes: msgpack [[class, sequences, blocks], ...], or ""
--     10  1 if the seat waits for its bell unless something was claimed
--     11  figures (opaque), or ""
--     12  counters: msgpack [name, increment (as text), ...]
--     13  gauges (opaque)
--     14  summary
--     15  us an ended group is kept
--     16  all ids that the caller holds: msgpack, or ""
--     17  tokens that fit into the engine's KV blocks in all; 0: not known
--     18  19  sequences more, one each of tenants of which the seat has none; those of which it has any: msgpack, or ""
-- Reply   {1, claims (see contents in fragments/claims.lua), ids to end, foreign ids, [id, tokens the pool has, ...],
--         1 if exchanges were lost};
--         {0} and nothing written if the epoch is not the seat's
local seat, call = ARGV[1], tonumber(ARGV[3])
local commits, counters = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[12])
local seat_key = P .. "seat:" .. seat
stamp()

local function reply(claimed, foreign, have, lost)
  return { 1, contents_of(claimed), redis.call("SMEMBERS", P .. "cancelled:" .. seat), foreign, have, lost }
end

local held = redis.call("HMGET", seat_key, "epoch", "call", "said", "lease")
if held[1] ~= ARGV[2] then
  return { 0 }
end
local last = tonumber(held[2])
if call == last then
  return reply(unpack(cmsgpack.unpack(held[3])))
elseif call < last then
  return reply({}, {}, {}, 0)
end

redis.call("ZADD", LEASES, now + tonumber(held[4]), seat)
forget_gateways()
expire(tonumber(ARGV[15]))
local over, foreign, have = commit_all(seat, commits)
local waits, lost, slots = 0, 0, tonumber(ARGV[17])
if slots > 0 then
  redis.call("HSET", seat_key, "slots", slots)
end
if ARGV[16] ~= "" then
  waits = keep_only(seat, cmsgpack.unpack(ARGV[16]), over, foreign, have)
elseif call > last + 1 then
  lost = 1
end
local abandoned = cancel_abandoned()
waits = waits + reap()
local overdue, all_ended = end_overdue()
local claimed, more = {}, not all_ended
if lost == 0 and all_ended then
  claimed, more = claim(seat, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == "1",
    ARGV[9] ~= "" and cmsgpack.unpack(ARGV[9]) or {}, slots, tonumber(ARGV[18]),
    ARGV[19] ~= "" and cmsgpack.unpack(ARGV[19]) or {})
end
has_begun(claimed)
publish()
settle()

local strangers, lacking = {}, {}
for id in pairs(foreign) do
  strangers[#strangers + 1] = id
end
for id, count in pairs(have) do
  lacking[#lacking + 1] = id
  lacking[#lacking + 1] = count
end
local said = { claimed, strangers, lacking, lost }
redis.call("HSET", seat_key, "call", call, "said", cmsgpack.pack(said), "gauges", ARGV[13], "summary", ARGV[14])
if ARGV[11] ~= "" then
  redis.call("HSET", seat_key, "figures", ARGV[11])
  redis.call("HSET", META, "figures", ARGV[11])
end
for i = 1, #counters, 2 do
  redis.call("HINCRBYFLOAT", COUNTERS, counters[i], counters[i + 1])
end

redis.call("SREM", IDLE, seat)
if abandoned or overdue or waits > 0 and redis.call("EXISTS", TURNS) == 1 then
  ring()
end
redis.call("DEL", P .. "bell:" .. seat)
if more then -- it is to come again at once
  redis.call("LPUSH", P .. "bell:" .. seat, 1)
elseif ARGV[10] == "1" and #claimed == 0 and lost == 0 then
  redis.call("SADD", IDLE, seat)
end
return reply(unpack(said))
