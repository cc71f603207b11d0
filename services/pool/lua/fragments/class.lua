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

local function class_of(request)
  local g = redis.call("HMGET", P .. "group:" .. request, "priority", "ageing", "arrival")
  return tonumber(g[1]), tonumber(g[2] or 0), tonumber(g[3]) -- earlier builds write no ageing
end
