-- Forgets a gateway that goes away, with its stream.
-- include: keys time gateways
--
-- KEYS 1  the pool's prefix
-- ARGV 1  gateway
-- Reply   1
stamp()
forget(ARGV[1])
abandon_orphans()
return 1
