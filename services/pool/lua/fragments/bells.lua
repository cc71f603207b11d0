-- include: keys
-- Wakes every seat that said it is idle. One ring is enough, however often the bell is rung.
local function ring()
  for _, seat in ipairs(redis.call("SMEMBERS", IDLE)) do
    redis.call("LPUSH", P .. "bell:" .. seat, 1)
    redis.call("LTRIM", P .. "bell:" .. seat, 0, 0)
  end
  redis.call("DEL", IDLE)
end
