-- Forgets a gateway that shuts down, with its stream.
-- include: gateways
--
-- Arguments
--   gateway
-- Reply   1
begin()
forget_gateway(args.gateway)
abandon_orphans()
return 1
