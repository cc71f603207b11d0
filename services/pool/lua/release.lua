-- Gives a seat back; only its owner can. What it ran waits again, except what has its last strike. A surplus seat whose
-- engine was removed is forgotten.
-- include: seats gateways counters
--
-- Arguments
--   seat, epoch
--   struck    ids that were in an iteration when the seat's engine died
--   removed   whether the owner has removed the engine
--   counters  [name, increment (as text), ...]
-- Reply   1, also to a repeat while no later owner gives the seat back; or 0, with nothing written, if the epoch is not
--         the seat's
local seat, epoch = args.seat, args.epoch
begin()
forget_expired_gateways()
local held = redis.call("HMGET", P .. "seat:" .. seat, "epoch", "released")
if held[1] ~= epoch then
  return held[2] == epoch and 1 or 0
end
for _, id in ipairs(args.struck) do
  if redis.call("SISMEMBER", P .. "running:" .. seat, id) == 1 then
    strike(seat, id, 0)
  end
end
redis.call("HSET", P .. "seat:" .. seat, "released", epoch)
if vacate_seat(seat, 0) > 0 then
  wake_idle_seats()
end
if args.removed and is_surplus(seat) then
  forget_seat(seat)
end
publish_events()
save_counts()
add_counters(args.counters)
return 1
