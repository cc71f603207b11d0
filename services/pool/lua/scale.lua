-- Sets how many engines a cluster is to have. Surplus seats, those with an index from this number on, get no requests from
-- now on.
-- include: notify
--
-- KEYS 1  the pool's prefix
-- ARGV 1  cluster
--      2  number of engines
-- Reply   1
begin()
redis.call("HSET", WANTED, ARGV[1], ARGV[2])
wake_idle_seats()
return 1
