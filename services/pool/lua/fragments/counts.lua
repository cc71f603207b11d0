-- include: keys time
-- What is in the pool, of all tenants (in `meta`) and of each (in `tenant:<name>`): sequences that wait, tokens of their
-- prompts, bytes of groups, those of ended groups in them, streams (open groups that a client waits for), ended groups,
-- ended sequences. Then what left of late, each sum fading with time: time (us) of the last departure, sequences that
-- waited, tokens of their prompts, bytes of open groups, streams.
-- A script reads what it needs once, and `settle` writes what has changed. All is in one field, because a server takes
-- longer to write ten numbers as text than to pack them.
local COUNTED = { "waiting_sequences", "waiting_tokens", "bytes", "ended_bytes", "streams", "stored", "ended" }
local LEFT = { "left_at", "left_waiting_sequences", "left_waiting_tokens", "left_bytes", "left_streams" }
local RATED = 10 -- seconds, about, over which it is measured how fast things leave
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
    for i, name in ipairs(LEFT) do
      found[name] = read[#COUNTED + i] or 0
    end
    found.had_waiting_sequences, found.had_waiting_tokens = found.waiting_sequences, found.waiting_tokens
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

-- A sequence of this tenant waits (1), or waits no more (-1).
local function count_waiting(tenant, prompt_len, by)
  count(tenant, "waiting_sequences", by)
  count(tenant, "waiting_tokens", by * tonumber(prompt_len))
end

-- What is still there of a sum of departures.
local function faded(counts, name)
  return counts["left_" .. name] * math.exp(math.min(0, counts.left_at - now) / 1e6 / RATED)
end

-- Seconds until the part of a bound is free that `more` needs, as fast as things have left of late. Nobody knows while
-- nothing has.
local function seconds_until_free(counts, name, held, more, limit)
  local sum = faded(counts, name)
  local lacking = held + math.max(more, FREE_FIRST * limit) - limit
  if sum == 0 and lacking > 0 then
    return RATED
  end
  return math.max(1, math.min(RETRY_MOST, math.ceil(lacking * RATED / math.max(sum, 1e-9))))
end

-- Adds to what has left of late what this script took away.
local function note_departures(counts)
  local waiting, tokens = counts.had_waiting_sequences - counts.waiting_sequences,
    counts.had_waiting_tokens - counts.waiting_tokens
  local open_bytes, streams = counts.had_open_bytes - counts.bytes + counts.ended_bytes,
    counts.had_streams - counts.streams
  if waiting > 0 or tokens > 0 or open_bytes > 0 or streams > 0 then
    counts.left_waiting_sequences = faded(counts, "waiting_sequences") + math.max(0, waiting)
    counts.left_waiting_tokens = faded(counts, "waiting_tokens") + math.max(0, tokens)
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
      redis.call("HSET", key, "counts", cmsgpack.pack({ counts.waiting_sequences, counts.waiting_tokens, counts.bytes,
        counts.ended_bytes, counts.streams, counts.stored, counts.ended, counts.left_at,
        counts.left_waiting_sequences, counts.left_waiting_tokens, counts.left_bytes, counts.left_streams }))
      if counts.tenant and counts.is_new then
        redis.call("SADD", HOLDERS, counts.tenant)
      end
    end
  end
end
