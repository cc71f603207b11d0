-- Takes a named lock for a time, or renews it. Each time that the lock is taken it gets a new, greater epoch.
-- include: begin
--
-- Arguments
--   name
--   holder  the same holder renews the lock
--   ttl     ms until the lock is free again
-- Reply   the epoch; "" while another holder has the lock
local key = P .. "hold:" .. args.name
local held = redis.call("HMGET", key, "holder", "epoch")
if held[1] and held[1] ~= args.holder then
  return ""
end
local epoch = held[2]
if not epoch then
  begin()
  epoch = string.format("%.0f", tick)
  redis.call("HSET", key, "holder", args.holder, "epoch", epoch)
end
redis.call("PEXPIRE", key, args.ttl)
return epoch
