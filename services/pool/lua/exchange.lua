-- What a scheduler calls once per iteration: commits tokens, renews the lease, reclaims expired seats, claims sequences.
-- A surplus seat claims nothing.
-- include: commit claim gateways counters
--
-- Arguments
--   seat, epoch
--   call        number, one above that of the previous exchange; the same number is a repeat. A greater one means that the
--               server lost exchanges that it had answered: nothing is claimed then unless the caller says what it holds
--   commits     a batch (its format is in fragments/notify.lua)
--   room        what the seat can claim: the fields of `Room` in services/messages.py
--   idle        whether the seat waits for its bell unless it claims something
--   figures     opaque, or false
--   counters    [name, increment (as text), ...]
--   gauges      opaque
--   summary     a line of text
--   keep_ended  us that an ended group is kept
--   most_wait   us that a sequence may be expected to wait; 0: no bound
--   holds       all ids that the caller holds, or false
-- Reply, by name; {}, with nothing written, if the epoch is not the seat's
--   claims      [claim, ...] (see claim_contents in fragments/claim.lua)
--   cancelled, foreign   [id, ...]
--   have        [id, tokens that the pool has, ...]
--   lost        1 if exchanges were lost
--   surplus     1 if the seat is surplus
--   forgotten   [id, ...] of dropped sequences whose texts it may have for drafts
local seat, call, room = args.seat, args.call, named(args.room)
local seat_key = P .. "seat:" .. seat
begin()
local surplus = is_surplus(seat)
local MAX_FORGOTTEN = 1000 -- sequences that one reply tells; the next one tells others
local COLD = 2 -- the gauge `sleep` of an engine without weights: `SleepLevel` in services/overview.py

local function reply(claimed, foreign, lacking, lost, forgotten)
  return by_name({ claims = contents_of_claims(claimed), cancelled = redis.call("SMEMBERS", P .. "cancelled:" .. seat),
    foreign = foreign, have = lacking, lost = lost, surplus = surplus and 1 or 0,
    forgotten = forgotten })
end

-- Whether this seat's engine has no weights because it sleeps, and no other engine has them.
local function all_sleep()
  local level = room.longest == 0 and cmsgpack.unpack(args.gauges).sleep or 0
  for _, other in ipairs(level < COLD and {} or redis.call("ZRANGE", LEASES, 0, -1)) do
    local gauges = other ~= seat and redis.call("HGET", P .. "seat:" .. other, "gauges")
    gauges = gauges and cmsgpack.unpack(gauges) or {}
    if gauges.ready == 1 and (gauges.sleep or 0) < COLD then
      return false
    end
  end
  return level >= COLD
end

local held = redis.call("HMGET", seat_key, "epoch", "call", "said", "lease")
if held[1] ~= args.epoch then
  return {}
end
local last = tonumber(held[2])
if call == last then
  return reply(unpack(cmsgpack.unpack(held[3])))
elseif call < last then
  return reply({}, {}, {}, 0, {})
end

redis.call("ZADD", LEASES, now + tonumber(held[4]), seat)
if all_sleep() then -- no rate can be seen; and nobody waits for longer because of requests before it
  resumed = now
  redis.call("HSET", META, "resumed", now, "slept", now)
end
forget_expired_gateways()
drop_expired_groups(args.keep_ended)
local ended, foreign, lacking = commit_all(seat, args.commits, args.most_wait)
local requeued, lost = 0, 0
if room.longest > 0 then
  redis.call("HSET", seat_key, "slots", far_if(room.features, room.longest), "features", cmsgpack.pack(room.features))
end
if args.holds then
  requeued = requeue_all_but(seat, args.holds, ended, foreign, lacking)
elseif call > last + 1 then
  lost = 1
end
local abandoned = cancel_abandoned_groups()
requeued = requeued + reclaim_expired_seats()
local overdue, all_ended = end_overdue_groups()
local claimed, more = {}, not all_ended
if lost == 0 and all_ended and not surplus then
  claimed, more = claim_sequences(seat, room, args.most_wait)
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
local said = { claimed, foreign_ids, lacking_ids, lost, redis.call("SPOP", P .. "forgotten:" .. seat, MAX_FORGOTTEN) }
redis.call("HSET", seat_key, "call", call, "said", cmsgpack.pack(said), "gauges", args.gauges, "summary", args.summary)
if args.figures then
  redis.call("HSET", seat_key, "figures", args.figures)
  redis.call("HSET", META, "figures", args.figures)
end
add_counters(args.counters)

redis.call("SREM", IDLE, seat)
if abandoned or overdue or requeued > 0 and redis.call("EXISTS", TURNS) == 1 then
  wake_idle_seats()
end
redis.call("DEL", P .. "bell:" .. seat)
if more then -- the seat should call again at once
  redis.call("LPUSH", P .. "bell:" .. seat, 1)
elseif args.idle and #claimed == 0 and lost == 0 then
  redis.call("SADD", IDLE, seat)
end
return reply(unpack(said))
