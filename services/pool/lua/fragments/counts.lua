-- include: begin class service_rate
-- What is in the pool, over all tenants (in `meta`) and for each tenant (in `tenant:<name>`).
--
--   waiting_sequences, waiting_tokens  sequences that wait, and tokens of their prompts
--   bytes, ended_bytes                 bytes of all groups, and of ended groups among them
--   streams                            open groups for which a client waits
--   stored, ended                      ended groups, ended sequences
--   backlog, running                   sequences that wait and that run, without lines of batches
--   left_at, left_bytes, left_streams  recent departures: time (us) of the last one; bytes of open groups and streams,
--                                      sums that decay with time
--   since, claimed, took               the rate of claims (service_rate.lua)
--   patience                           how long requests may wait (patience.lua)
--
-- A script reads the counts that it needs once, and `save_counts` writes those that changed. They share one field,
-- because packing ten numbers takes a server less time than writing them as text.
local COUNTED = { "waiting_sequences", "waiting_tokens", "bytes", "ended_bytes", "streams", "stored", "ended", "backlog",
  "running" }
local MEASURED = { "left_at", "left_bytes", "left_streams", "since", "claimed", "took", "patience" }
local DECAY = 10 -- seconds; time constant of the sums of departures
local MAX_RETRY_AFTER = 120 -- seconds that a refused client is told to wait, at most
local FREE_SHARE = 0.1 -- the share of a bound that should be free when the client tries again

local counts_by_key = {}

-- The counts in the hash `key`.
local function counts_at(key)
  local found = counts_by_key[key]
  if not found then
    local packed = redis.call("HGET", key, "counts")
    local read = packed and cmsgpack.unpack(packed) or {}
    found = {}
    for i, name in ipairs(COUNTED) do
      found[name] = read[i] or 0
    end
    for i, name in ipairs(MEASURED) do
      found[name] = read[#COUNTED + i] or 0
    end
    found.had_backlog, found.claims = found.backlog, 0
    found.had_open_bytes, found.had_streams = found.bytes - found.ended_bytes, found.streams
    found.is_new = found.bytes == 0
    counts_by_key[key] = found
  end
  return found
end

local function counts_of(tenant)
  return counts_at(P .. "tenant:" .. tenant)
end

-- Adds `by` to a count of the tenant and of all tenants.
local function add_to_counts(tenant, name, by)
  local all, own = counts_at(META), counts_of(tenant)
  all[name], own[name], own.tenant = all[name] + by, own[name] + by, tenant
  all.changed, own.changed = true, true
end

-- Sequences of this tenant begin (`by` = 1) or cease (-1) to wait. `priority` is their class.
local function count_waiting(tenant, priority, sequences, tokens, by)
  add_to_counts(tenant, "waiting_sequences", by * sequences)
  add_to_counts(tenant, "waiting_tokens", by * tokens)
  if not is_line(priority) then
    add_to_counts(tenant, "backlog", by * sequences)
  end
end

-- A sequence of this tenant begins (`by` = 1) or ceases (-1) to run.
local function count_running(tenant, priority, by)
  if not is_line(priority) then
    add_to_counts(tenant, "running", by)
  end
end

-- A seat claimed a sequence of this tenant.
local function count_claim(tenant, priority, prompt_len)
  count_waiting(tenant, priority, 1, prompt_len, -1)
  count_running(tenant, priority, 1)
  if not is_line(priority) then
    add_to_counts(tenant, "claims", 1)
  end
end

-- A sum of departures, decayed until now.
local function recently_left(counts, name)
  return counts["left_" .. name] * math.exp(math.min(0, counts.left_at - now) / 1e6 / DECAY)
end

-- The expected time (s) until the bound `name` has room for `more`, at the rate of recent departures or claims; a guess
-- where there were none.
local function seconds_until_free(counts, name, held, more, limit)
  local lacking, seconds = held + math.max(more, FREE_SHARE * limit) - limit, DECAY
  if name == "bytes" or name == "streams" then
    local sum = recently_left(counts, name)
    seconds = sum > 0 and lacking * DECAY / sum or DECAY
  elseif counts.claimed > 0 then
    seconds = expected_wait(counts, lacking * counts.waiting_sequences / held) / 1e6
  end
  return math.max(1, math.min(MAX_RETRY_AFTER, math.ceil(seconds)))
end

-- Adds what left during this script to the sums of departures.
local function record_departures(counts)
  local open_bytes, streams = counts.had_open_bytes - counts.bytes + counts.ended_bytes,
    counts.had_streams - counts.streams
  if open_bytes > 0 or streams > 0 then
    counts.left_bytes = recently_left(counts, "bytes") + math.max(0, open_bytes)
    counts.left_streams = recently_left(counts, "streams") + math.max(0, streams)
    counts.left_at = now
  end
end

-- Writes the counts that changed. A script calls this once, at its end. A tenant that has nothing in the pool has no
-- counts.
local function save_counts()
  for key, counts in pairs(counts_by_key) do
    if counts.changed and counts.tenant and counts.bytes == 0 then
      redis.call("HDEL", key, "counts")
      redis.call("SREM", HOLDERS, counts.tenant)
    elseif counts.changed then
      record_departures(counts)
      record_claims(counts)
      redis.call("HSET", key, "counts", cmsgpack.pack({ counts.waiting_sequences, counts.waiting_tokens, counts.bytes,
        counts.ended_bytes, counts.streams, counts.stored, counts.ended, counts.backlog, counts.running,
        counts.left_at, counts.left_bytes, counts.left_streams, counts.since, counts.claimed, counts.took, counts.patience }))
      if counts.tenant and counts.is_new then
        redis.call("SADD", HOLDERS, counts.tenant)
      end
    end
  end
end
