-- include: keys
-- The sums of what processes count, which /metrics shows.

-- Adds increments: [name, increment (as text), ...].
local function add_counters(counters)
  for i = 1, #counters, 2 do
    redis.call("HINCRBYFLOAT", COUNTERS, counters[i], counters[i + 1])
  end
end
