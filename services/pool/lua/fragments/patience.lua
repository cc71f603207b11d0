-- include: counts
-- How long a tenant's requests may wait, as its clients are seen to wait: `patience` (us) in the tenant's counts, 0 if
-- nothing is known. A client that leaves a request which has been claimed has cost engine time for nothing. If the wait
-- may be why it left, the bound moves towards a quarter of the time that it stayed: the rest is for the answer. Each
-- whole answer gives back a little.
-- Who leaves while its request waits costs nothing, and shows nothing here.
local LEAST_WAIT = 1000000 -- us; nobody leaves for a shorter wait
local WAIT_SHARE = 0.18 -- of the time that a client stayed; if less of it was waiting, the wait is not why it left
local ADAPT = 0.25 -- how far a client that leaves moves the bound
local REGAIN = 1 / 300 -- of the wait for a whole answer

-- How long (us) a request of a tenant with these counts may be expected to wait; `most` is the setting, 0 for no bound.
local function longest_wait(counts, most)
  return counts.patience > 0 and math.min(counts.patience, most) or most
end

-- Since when (us) a request of this arrival waits for its turn: time in which all engines slept does not count.
local function waits_since(arrival)
  return math.max(tonumber(arrival), tonumber(redis.call("HGET", META, "slept") or 0))
end

-- Learns from a sequence that its seat is about to end. A client of a resumable group may still come back.
local function learn_patience(id, most)
  if most == 0 then
    return
  end
  local s = redis.call("HMGET", P .. "seq:" .. id, "group", "claimed", "cancelled")
  local g = redis.call("HMGET", P .. "group:" .. s[1], "tenant", "stream", "resumable", "arrival")
  if g[2] ~= "1" or g[3] == "1" then
    return
  end
  local counts = counts_of(g[1])
  local bound, waited, stayed = longest_wait(counts, most), math.max(0, s[2] - waits_since(g[4])), now - g[4]
  if not s[3] then
    counts.patience = bound + REGAIN * waited
  elseif waited >= math.max(LEAST_WAIT, WAIT_SHARE * stayed) then
    counts.patience = bound - ADAPT * math.max(0, bound - stayed / 4)
  end
end

-- Whether a waiting sequence has waited for longer than the tenant's clients are seen to wait; not if it ran before or
-- was late before (`again`).
local function is_late(tenant, group, again, most)
  local patience = counts_of(tenant).patience
  if again or patience == 0 or patience >= most then
    return false
  end
  local g = redis.call("HMGET", P .. "group:" .. group, "stream", "arrival")
  return g[1] == "1" and now - waits_since(g[2]) > patience
end

-- Puts a late sequence behind all that arrive within `most` us after it: its client has probably left, or leaves before
-- it has an answer.
local function put_behind(tenant, id, most)
  local rank = redis.call("HGET", P .. "seq:" .. id, "rank") + most
  redis.call("HSET", P .. "seq:" .. id, "rank", string.format("%.0f", rank), "late", 1)
  redis.call("ZADD", P .. "waiting:" .. tenant, rank, id)
end
