-- Frees a named lock if this holder has it.
-- include: keys
--
-- KEYS 1  the pool's prefix
-- ARGV 1  name
--      2  holder
local key = P .. "hold:" .. ARGV[1]
if redis.call("HGET", key, "holder") == ARGV[2] then
  redis.call("DEL", key)
end
