-- Describes the pool to an observer. Changes nothing, not even the stamp.
-- include: counts
--
-- Reply, by name
--   waiting, ended, bytes
--   waiting_tokens   tokens of the prompts that wait
--   figures          of the last engine that announced them (opaque), or ""
--   gateways         [gateway, gauges or "", ...]
--   counters         [name, sum, ...]
--   seats            [seat, ...], each by name; what a seat lacks is ""
--   full             1 if the server's memory is full
--   wanted           [cluster, number of engines that it is to have, ...]
--   created          Unix seconds of the first heartbeat, or 0
local seats = {}
for i, seat in ipairs(redis.call("ZRANGE", SEATS, 0, -1)) do
  local s = redis.call("HMGET", P .. "seat:" .. seat, "figures", "gauges", "summary", "owner", "epoch")
  local lease = tonumber(redis.call("ZSCORE", LEASES, seat) or 0)
  seats[i] = by_name({ name = seat, alive = lease > now and 1 or 0, running = redis.call("SCARD", P .. "running:" .. seat),
    figures = s[1] or "", gauges = s[2] or "", summary = s[3] or "", owner = s[4] or "", epoch = s[5] or "" })
end
local gateways = {}
for _, gateway in ipairs(redis.call("ZRANGEBYSCORE", GATEWAYS, "(" .. string.format("%.0f", now), "+inf")) do
  gateways[#gateways + 1] = gateway
  gateways[#gateways + 1] = redis.call("HGET", P .. "gateway:" .. gateway, "gauges") or ""
end
local all = counts_at(META)
return by_name({ waiting = all.waiting_sequences, waiting_tokens = all.waiting_tokens, ended = all.ended,
  bytes = all.bytes, figures = redis.call("HGET", META, "figures") or "", gateways = gateways,
  counters = redis.call("HGETALL", COUNTERS), seats = seats, full = memory_full() and 1 or 0,
  wanted = redis.call("HGETALL", WANTED), created = tonumber(redis.call("HGET", META, "created") or 0) })
