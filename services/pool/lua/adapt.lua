-- Replaces the registry of adapters by a later one.
-- include: begin
--
-- Arguments
--   version   number, greater than that of the registry that it replaces
--   registry  opaque
-- Reply   1 if the pool has this registry now; 0 if it has another one of this version, or a later one
begin()
local held = redis.call("HMGET", ADAPTERS, "version", "registry")
local version = tonumber(held[1] or 0)
if version < args.version then
  redis.call("HSET", ADAPTERS, "version", args.version, "registry", args.registry)
  return 1
end
return version == args.version and held[2] == args.registry and 1 or 0
