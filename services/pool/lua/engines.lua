-- How many engines a cluster is to have, and which seats it has.
-- include: begin
--
-- Arguments
--   cluster
--   configured  number of engines in the configuration of the caller
--   announce    whether the configuration was just read: if it differs from the one read before, it replaces the number
--               that `scale` has set; otherwise it counts only while the pool has no number
-- Reply, by name
--   wanted      number of engines
--   indices     [index of a seat, ...]; surplus seats have an index from `wanted` on
local cluster, configured = args.cluster, args.configured
local wanted = redis.call("HGET", WANTED, cluster)
if not wanted or args.announce and tonumber(redis.call("HGET", CONFIGURED, cluster)) ~= configured then
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
return by_name({ wanted = tonumber(wanted), indices = indices })
