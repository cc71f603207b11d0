-- include: keys
-- The class of a group is three numbers: its priority (the lowest goes first), what one class is worth in the queue (us; 0:
-- classes do not count), and its arrival (us).
--
-- BATCH_CLASS is the last one: lines of batches run while nothing else does. They are ranked BEHIND all others (us), take
-- turns by a counter of their own, and are no part of what shows how long a request will wait.

local function is_line(priority)
  return tonumber(priority) >= BATCH_CLASS
end

-- The name of the counter by which requests of this class take turns.
local function counter_of(priority)
  return is_line(priority) and "lines" or "served"
end

-- Priority, ageing and arrival of a sequence's group. The scripts of the build before kept the ageing in the sequence,
-- inside `class`, a text that they still need.
local function class_of(request, class)
  local g = redis.call("HMGET", P .. "group:" .. request, "priority", "ageing", "arrival")
  return tonumber(g[1]), tonumber(g[2] or class and string.match(class, "^%S+ (%S+)") or 0), tonumber(g[3])
end

-- That text; false if arrival alone orders the group.
local function class_for_the_build_before(priority, ageing, arrival)
  return is_line(priority) and "lines" or ageing > 0 and string.format("%.0f %.0f %.0f", priority, ageing, arrival)
end
