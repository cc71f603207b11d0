-- Gives a seat to an owner under a new epoch, if the seat is free, its lease has expired, or its epoch is known to be dead.
-- include: seats gateways
--
-- Arguments
--   seat, owner
--   lease       us
--   dead_epoch  an epoch that is known to be dead, or ""
--   nonce       part of the new epoch
--   after       number that the new epoch has to exceed
-- Reply, by name
--   granted       1; or 0, with the epoch and owner of the holder, while its lease lives. A repeat by the owner before its
--                 first exchange gets the same epoch again
--   epoch, owner
--   surplus       1 if the seat is surplus
local seat, owner = args.seat, args.owner
local seat_key = P .. "seat:" .. seat
begin()
forget_expired_gateways()
local wake = cancel_abandoned_groups()
wake = end_overdue_groups() or wake
wake = reclaim_expired_seats() > 0 or wake
local held = redis.call("HMGET", seat_key, "epoch", "owner", "call")
if held[1] and held[1] == args.dead_epoch then
  redis.call("HSET", seat_key, "dead", held[1])
  wake = reclaim_seat(seat) > 0 or wake
  held[1] = false
end
publish_events()
save_counts()
if wake then
  wake_idle_seats()
end
if held[1] then
  return by_name({ granted = held[2] == owner and held[3] == "0" and 1 or 0, epoch = held[1], owner = held[2],
    surplus = is_surplus(seat) and 1 or 0 })
end
if tick <= args.after then
  tick = args.after + 1
  redis.call("HSET", META, "tick", tick)
end
local epoch = string.format("%.0f:%s", tick, args.nonce)
redis.call("HSET", seat_key, "epoch", epoch, "owner", owner, "lease", args.lease, "call", 0)
redis.call("ZADD", LEASES, now + args.lease, seat)
redis.call("ZADD", SEATS, "+inf", seat)
return by_name({ granted = 1, epoch = epoch, owner = owner, surplus = is_surplus(seat) and 1 or 0 })
