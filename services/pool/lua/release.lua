-- Gives a seat back; only its owner can. What it ran waits again, except what has its last strike. A surplus seat whose
-- engine was removed is forgotten.
-- include: seats gateways counters
--
-- KEYS 1  the pool's prefix
-- ARGV 1  seat
--      2  epoch
--      3  ids that were in an iteration when the seat's engine died: msgpack
--      4  1 if the owner has removed the engine
--      5  counters: msgpack [name, increment (as text), ...]
-- Reply   1, also to a repeat while no later owner gives the seat back; or 0, with nothing written, if the epoch is not
--         the seat's
local seat = ARGV[1]
begin()
forget_expired_gateways()
local held = redis.call("HMGET", P .. "seat:" .. seat, "epoch", "released")
if held[1] ~= ARGV[2] then
  return held[2] == ARGV[2] and 1 or 0
end
for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do
  if redis.call("SISMEMBER", P .. "running:" .. seat, id) == 1 then
    strike(seat, id, 0)
  end
end
redis.call("HSET", P .. "seat:" .. seat, "released", ARGV[2])
if vacate_seat(seat, 0) > 0 then
  wake_idle_seats()
end
if ARGV[4] == "1" and is_surplus(seat) then
  forget_seat(seat)
end
publish_events()
save_counts()
add_counters(ARGV[5])
return 1
