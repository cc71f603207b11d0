-- include: keys
-- The sums of what processes count, which /metrics shows.

-- Adds increments: msgpack [name, increment (as text), ...].
local function add_counters(packed)
  local counters = cmsgpack.unpack(packed)
  for i = 1, #counters, 2 do
    redis.call("HINCRBYFLOAT", COUNTERS, counters[i], counters[i + 1])
  end
end
