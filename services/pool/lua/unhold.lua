-- Frees a named lock if this holder has it.
-- include: keys
--
-- Arguments
--   name, holder
local key = P .. "hold:" .. args.name
if redis.call("HGET", key, "holder") == args.holder then
  redis.call("DEL", key)
end
