-- include: arguments
-- Names of keys; README.md describes what each key holds.
local P = KEYS[1]
local META, COUNTERS = P .. "meta", P .. "counters"
local TURNS, ENDED, IDEMPOTENCY = P .. "turns", P .. "ended", P .. "idempotency"
local HOLDERS = P .. "holders"
local ABANDONED, ORPHANS, DEADLINES = P .. "abandoned", P .. "orphans", P .. "deadlines"
local LEASES, SEATS, IDLE = P .. "leases", P .. "seats", P .. "idle"
local WANTED, CONFIGURED = P .. "wanted", P .. "configured"
local GATEWAYS = P .. "gateways"
local ADAPTERS, ADAPTED = P .. "adapters", P .. "adapted"

-- The cluster and the index of a seat, which is named <cluster>/<index>; nil for other names.
local function cluster_of(seat)
  local cluster, index = string.match(seat, "^(.*)/(%d+)$")
  return cluster, tonumber(index)
end

local CHUNK = 4000 -- arguments of one command; unpack takes fewer than 8,000

-- Calls `command key ids...` in chunks, for any number of ids from 1 on. Returns all replies in one table.
local function call_in_chunks(command, key, ids)
  local replies = redis.call(command, key, unpack(ids, 1, math.min(CHUNK, #ids)))
  for first = CHUNK + 1, #ids, CHUNK do
    for _, reply in ipairs(redis.call(command, key, unpack(ids, first, math.min(first + CHUNK - 1, #ids)))) do
      replies[#replies + 1] = reply
    end
  end
  return replies
end
