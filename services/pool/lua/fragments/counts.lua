-- include: keys time service_rate
-- What is in the pool, of all tenants (in `meta`) and of each (in `tenant:<name>`): sequences that wait, tokens of their
-- prompts, bytes of groups, those of ended groups in them, streams (open groups that a client waits for), ended groups,
-- ended sequences; then, less lines of batches, sequences that wait (`backlog`) and that run. Then what left of late,
-- each sum fading with time: time (us) of the last departure, bytes of open groups, streams. Then how fast sequences are
-- claimed (see service_rate).
-- A script reads what it needs once, and `settle` writes what has changed. All is in one field, because a server takes
-- longer to write ten numbers as text than to pack them.
local COUNTED = { "waiting_sequences", "waiting_tokens", "bytes", "ended_bytes", "streams", "stored", "ended", "backlog",
  "running" }
local MEASURED = { "left_at", "left_bytes", "left_streams", "since", "claimed", "took" }
local RATED = 10 -- seconds, about, over which it is measured how fast bytes and streams leave
local RETRY_MOST = 120 -- seconds after which a client is told to come again, at most
local FREE_FIRST = 0.1 -- part of a bound that is to be free by then

local books = {} -- by key

local function book(key)
  local found = books[key]
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
    books[key] = found
  end
  return found
end

local function book_of(tenant)
  return book(P .. "tenant:" .. tenant)
end

local function count(tenant, name, by)
  local all, own = book(META), book_of(tenant)
  all[name], own[name], own.tenant = all[name] + by, own[name] + by, tenant
  all.changed, own.changed = true, true
end

-- Sequences of this tenant wait (1), or wait no more (-1). `class` as in the sequence's field.
local function count_waiting(tenant, class, sequences, tokens, by)
  count(tenant, "waiting_sequences", by * sequences)
  count(tenant, "waiting_tokens", by * tokens)
  if class ~= "lines" then
    count(tenant, "backlog", by * sequences)
  end
end

-- A sequence of this tenant runs (1), or runs no more (-1).
local function count_running(tenant, class, by)
  if class ~= "lines" then
    count(tenant, "running", by)
  end
end

-- A seat took a sequence of this tenant.
local function count_claim(tenant, class, prompt_len)
  count_waiting(tenant, class, 1, prompt_len, -1)
  count_running(tenant, class, 1)
  if class ~= "lines" then
    count(tenant, "claims", 1)
  end
end

-- What is still there of a sum of departures.
local function faded(counts, name)
  return counts["left_" .. name] * math.exp(math.min(0, counts.left_at - now) / 1e6 / RATED)
end

-- Seconds until the part of a bound is free that `more` needs, as fast as things have left of late. Nobody knows while
-- nothing has.
local function seconds_until_free(counts, name, held, more, limit)
  local lacking, seconds = held + math.max(more, FREE_FIRST * limit) - limit, RATED
  if name == "bytes" or name == "streams" then
    local sum = faded(counts, name)
    seconds = sum > 0 and lacking * RATED / sum or RATED
  elseif counts.claimed > 0 then
    seconds = expected_wait(counts, lacking * counts.waiting_sequences / held) / 1e6
  end
  return math.max(1, math.min(RETRY_MOST, math.ceil(seconds)))
end

-- Adds to what has left of late what this script took away.
local function note_departures(counts)
  local open_bytes, streams = counts.had_open_bytes - counts.bytes + counts.ended_bytes,
    counts.had_streams - counts.streams
  if open_bytes > 0 or streams > 0 then
    counts.left_bytes = faded(counts, "bytes") + math.max(0, open_bytes)
    counts.left_streams = faded(counts, "streams") + math.max(0, streams)
    counts.left_at = now
  end
end

-- Writes what has changed, once, behind all else that a script does. A tenant of which nothing is left has no counts.
local function settle()
  for key, counts in pairs(books) do
    if counts.changed and counts.tenant and counts.bytes == 0 then
      redis.call("HDEL", key, "counts")
      redis.call("SREM", HOLDERS, counts.tenant)
    elseif counts.changed then
      note_departures(counts)
      note_claims(counts)
      redis.call("HSET", key, "counts", cmsgpack.pack({ counts.waiting_sequences, counts.waiting_tokens, counts.bytes,
        counts.ended_bytes, counts.streams, counts.stored, counts.ended, counts.backlog, counts.running,
        counts.left_at, counts.left_bytes, counts.left_streams, counts.since, counts.claimed, counts.took }))
      if counts.tenant and counts.is_new then
        redis.call("SADD", HOLDERS, counts.tenant)
      end
    end
  end
end
