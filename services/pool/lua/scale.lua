-- Sets how many engines a cluster is to have. Surplus seats, those with an index from this number on, get no requests from
-- now on.
-- include: notify
--
-- Arguments
--   cluster
--   engines  how many
-- Reply   1
begin()
redis.call("HSET", WANTED, args.cluster, args.engines)
wake_idle_seats()
return 1
