-- Takes a name for a while, or renews that. Each taking has an epoch of its own, later than all before.
-- include: keys time
--
-- KEYS 1  the pool's prefix
-- ARGV 1  name
--      2  holder: the same again renews
--      3  ms until it is free again
-- Reply   the epoch; "" while another has it
local key = P .. "hold:" .. ARGV[1]
local held = redis.call("HMGET", key, "holder", "epoch")
if held[1] and held[1] ~= ARGV[2] then
  return ""
end
local epoch = held[2]
if not epoch then
  stamp()
  epoch = string.format("%.0f", tick)
  redis.call("HSET", key, "holder", ARGV[2], "epoch", epoch)
end
redis.call("PEXPIRE", key, ARGV[3])
return epoch
