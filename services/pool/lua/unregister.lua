-- Forgets a gateway that shuts down, with its stream.
-- include: gateways
--
-- KEYS 1  the pool's prefix
-- ARGV 1  gateway
-- Reply   1
begin()
forget_gateway(ARGV[1])
abandon_orphans()
return 1
