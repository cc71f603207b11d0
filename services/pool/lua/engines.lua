-- How many engines a cluster is to have, and which seats it has.
-- include: begin
--
-- KEYS 1  the pool's prefix
-- ARGV 1  cluster
--      2  number of engines in the configuration of the caller
--      3  1 if the configuration was just read: if it differs from the one read before, it replaces the number that
--         `scale` has set; 0: it counts only while the pool has no number
-- Reply   {number of engines, [index of a seat, ...]}; surplus seats have an index from the number of engines on
local cluster, configured = ARGV[1], ARGV[2]
local wanted = redis.call("HGET", WANTED, cluster)
if not wanted or ARGV[3] == "1" and redis.call("HGET", CONFIGURED, cluster) ~= configured then
  begin()
  redis.call("HSET", WANTED, cluster, configured)
  redis.call("HSET", CONFIGURED, cluster, configured)
  wanted = configured
end
local indices = {}
for _, seat in ipairs(redis.call("ZRANGE", SEATS, 0, -1)) do
  local name, index = cluster_of(seat)
  if name == cluster then
    indices[#indices + 1] = index
  end
end
return { tonumber(wanted), indices }
