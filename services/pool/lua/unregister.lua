-- Forgets a gateway that goes away, with its stream.
-- include: keys time
--
-- KEYS 1  the pool's prefix
-- ARGV 1  gateway
-- Reply   1
stamp()
redis.call("DEL", P .. "gateway:" .. ARGV[1], P .. "events:" .. ARGV[1])
redis.call("ZREM", GATEWAYS, ARGV[1])
return 1
