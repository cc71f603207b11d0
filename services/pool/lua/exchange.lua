-- What a scheduler calls once per iteration: commits tokens, renews the lease, reclaims expired seats, claims sequences.
-- A surplus seat claims nothing.
-- include: commit claim gateways counters
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  epoch
--      3  call number, one above that of the previous exchange; the same number is a repeat. A greater one means that the
--         server lost exchanges that it had answered: nothing is claimed then unless the caller says what it holds
--      4  commits: msgpack, a batch (its format is in fragments/notify.lua)
--      5  6  7  room: sequences, blocks, tokens of a block
--      8  1 if a sequence takes blocks for its maximum length, 0 if for the tokens that it has
--      9  what is yielded to earlier classes: msgpack [[class, sequences, blocks], ...], or ""
--     10  1 if the seat waits for its bell unless it claims something
--     11  figures (opaque), or ""
--     12  counters: msgpack [name, increment (as text), ...]
--     13  gauges (opaque)
--     14  summary
--     15  us that an ended group is kept
--     16  all ids that the caller holds: msgpack, or ""
--     17  the most tokens of a request that the engine can serve, as its length and its KV blocks allow; 0: not known
--     18  19  guests: how many more sequences, one for each tenant that has none at the seat; the tenants that have some:
--         msgpack, or ""
-- Reply   {1, claims (see claim_contents in fragments/claim.lua), cancelled ids, foreign ids, [id, tokens that the pool
--         has, ...], 1 if exchanges were lost, 1 if the seat is surplus};
--         {0}, with nothing written, if the epoch is not the seat's
local seat, call = ARGV[1], tonumber(ARGV[3])
local commits = cmsgpack.unpack(ARGV[4])
local seat_key = P .. "seat:" .. seat
begin()
local surplus = is_surplus(seat)

local function reply(claimed, foreign, lacking, lost)
  return { 1, contents_of_claims(claimed), redis.call("SMEMBERS", P .. "cancelled:" .. seat), foreign, lacking, lost,
    surplus and 1 or 0 }
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
forget_expired_gateways()
drop_expired_groups(tonumber(ARGV[15]))
local ended, foreign, lacking = commit_all(seat, commits)
local requeued, lost, longest = 0, 0, tonumber(ARGV[17])
if longest > 0 then
  redis.call("HSET", seat_key, "slots", longest)
end
if ARGV[16] ~= "" then
  requeued = requeue_all_but(seat, cmsgpack.unpack(ARGV[16]), ended, foreign, lacking)
elseif call > last + 1 then
  lost = 1
end
local abandoned = cancel_abandoned_groups()
requeued = requeued + reclaim_expired_seats()
local overdue, all_ended = end_overdue_groups()
local claimed, more = {}, not all_ended
if lost == 0 and all_ended and not surplus then
  claimed, more = claim_sequences(seat, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == "1",
    ARGV[9] ~= "" and cmsgpack.unpack(ARGV[9]) or {}, longest, tonumber(ARGV[18]),
    ARGV[19] ~= "" and cmsgpack.unpack(ARGV[19]) or {})
end
clear_deadlines(claimed)
publish_events()
save_counts()

local foreign_ids, lacking_ids = {}, {}
for id in pairs(foreign) do
  foreign_ids[#foreign_ids + 1] = id
end
for id, count in pairs(lacking) do
  lacking_ids[#lacking_ids + 1] = id
  lacking_ids[#lacking_ids + 1] = count
end
local said = { claimed, foreign_ids, lacking_ids, lost }
redis.call("HSET", seat_key, "call", call, "said", cmsgpack.pack(said), "gauges", ARGV[13], "summary", ARGV[14])
if ARGV[11] ~= "" then
  redis.call("HSET", seat_key, "figures", ARGV[11])
  redis.call("HSET", META, "figures", ARGV[11])
end
add_counters(ARGV[12])

redis.call("SREM", IDLE, seat)
if abandoned or overdue or requeued > 0 and redis.call("EXISTS", TURNS) == 1 then
  wake_idle_seats()
end
redis.call("DEL", P .. "bell:" .. seat)
if more then -- the seat should call again at once
  redis.call("LPUSH", P .. "bell:" .. seat, 1)
elseif ARGV[10] == "1" and #claimed == 0 and lost == 0 then
  redis.call("SADD", IDLE, seat)
end
return reply(unpack(said))
