-- Takes a named lock for a time, or renews it. Each time that the lock is taken it gets a new, greater epoch.
-- include: begin
--
-- KEYS 1  the pool's prefix
-- ARGV 1  name
--      2  holder; the same holder renews the lock
--      3  ms until the lock is free again
-- Reply   the epoch; "" while another holder has the lock
local key = P .. "hold:" .. ARGV[1]
local held = redis.call("HMGET", key, "holder", "epoch")
if held[1] and held[1] ~= ARGV[2] then
  return ""
end
local epoch = held[2]
if not epoch then
  begin()
  epoch = string.format("%.0f", tick)
  redis.call("HSET", key, "holder", ARGV[2], "epoch", epoch)
end
redis.call("PEXPIRE", key, ARGV[3])
return epoch
