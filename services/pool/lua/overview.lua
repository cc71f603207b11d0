-- Describes the pool to an observer. Changes nothing, not even the stamp.
-- include: counts
--
-- Reply   {waiting, ended, bytes, figures (opaque) or "", [gateway, gauges or "", ...], [name, sum, ...],
--          [[seat, 1 if its lease is valid, running, figures or "", gauges or "", summary or "", owner or "", epoch or ""],
--          ...], 1 if the server's memory is full, [cluster, number of engines that it is to have, ...],
--          tokens of the prompts that wait, Unix seconds of the first heartbeat or 0}
local seats = {}
for i, seat in ipairs(redis.call("ZRANGE", SEATS, 0, -1)) do
  local s = redis.call("HMGET", P .. "seat:" .. seat, "figures", "gauges", "summary", "owner", "epoch")
  local lease = tonumber(redis.call("ZSCORE", LEASES, seat) or 0)
  seats[i] = { seat, lease > now and 1 or 0, redis.call("SCARD", P .. "running:" .. seat),
    s[1] or "", s[2] or "", s[3] or "", s[4] or "", s[5] or "" }
end
local gateways = {}
for _, gateway in ipairs(redis.call("ZRANGEBYSCORE", GATEWAYS, "(" .. string.format("%.0f", now), "+inf")) do
  gateways[#gateways + 1] = gateway
  gateways[#gateways + 1] = redis.call("HGET", P .. "gateway:" .. gateway, "gauges") or ""
end
local all = counts_at(META)
return { all.waiting_sequences, all.ended, all.bytes, redis.call("HGET", META, "figures") or "",
  gateways, redis.call("HGETALL", COUNTERS), seats, memory_full() and 1 or 0, redis.call("HGETALL", WANTED),
  all.waiting_tokens, tonumber(redis.call("HGET", META, "created") or 0) }
