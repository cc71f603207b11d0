-- The pool from outside. Writes nothing, not even the stamp.
-- include: keys time
--
-- KEYS 1  the pool's prefix
-- Reply   {waiting, ended, bytes, figures (opaque) or "", gateways, [name, sum, ...],
--          [[seat, 1 if its lease has not run out, running, figures or "", gauges or "", summary or "", owner or ""], ...],
--          those of the waiting that are lines of batches}
local BEHIND_ALL = 1000000000000000 -- us: lines are ranked three times as far behind their arrival
local seats = {}
for i, seat in ipairs(redis.call("ZRANGE", SEATS, 0, -1)) do
  local s = redis.call("HMGET", P .. "seat:" .. seat, "figures", "gauges", "summary", "owner")
  local lease = tonumber(redis.call("ZSCORE", LEASES, seat) or 0)
  seats[i] = { seat, lease > now and 1 or 0, redis.call("SCARD", P .. "running:" .. seat),
    s[1] or "", s[2] or "", s[3] or "", s[4] or "" }
end
local meta = redis.call("HMGET", META, "ended", "bytes", "figures")
return { redis.call("ZCARD", WAITING), tonumber(meta[1] or 0), tonumber(meta[2] or 0), meta[3] or "",
  redis.call("ZCOUNT", GATEWAYS, "(" .. string.format("%.0f", now), "+inf"), redis.call("HGETALL", COUNTERS), seats,
  redis.call("ZCOUNT", WAITING, string.format("%.0f", now + BEHIND_ALL), "+inf") }
