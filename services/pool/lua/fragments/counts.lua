-- include: keys time
-- What is in the pool, of all tenants (in `meta`) and of each (in `tenant:<name>`): sequences that wait, tokens of their
-- prompts, bytes of groups, those of ended groups in them, streams (open groups that a client waits for), ended groups.
-- A script reads what it needs once, and `settle` writes what has changed.
local COUNTED = { "waiting_sequences", "waiting_tokens", "bytes", "ended_bytes", "streams", "stored" }
local RATED = 10 -- seconds, about, over which it is measured how fast things leave
local RETRY_MOST = 120 -- seconds after which a client is told to come again, at most
local FREE_FIRST = 0.1 -- part of a bound that is to be free by then

local books = {} -- by key

local function book(key)
  local found = books[key]
  if not found then
    local read = redis.call("HMGET", key, "left", unpack(COUNTED))
    found = { left = read[1], had = {} }
    for i, name in ipairs(COUNTED) do
      found[name] = tonumber(read[i + 1] or 0)
      found.had[name] = found[name]
    end
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
end

-- A sequence of this tenant waits (1), or waits no more (-1).
local function count_waiting(tenant, prompt_len, by)
  count(tenant, "waiting_sequences", by)
  count(tenant, "waiting_tokens", by * tonumber(prompt_len))
end

-- What has left of late, each fading with time: time (us) of the last departure, sequences that waited, tokens of their
-- prompts, bytes of groups that are not ended, streams.
local function left_of(counts, at)
  local left = counts.left and cmsgpack.unpack(counts.left) or { at, 0, 0, 0, 0 }
  local fading = math.exp(math.min(0, left[1] - at) / 1e6 / RATED)
  return { at, fading * left[2], fading * left[3], fading * left[4], fading * left[5] }
end

-- Seconds until the part of a bound is free that `more` needs, as fast as things have left of late. `place` is that of
-- the count in `left_of`. Nobody knows while nothing has left yet.
local function seconds_until_free(counts, place, held, more, limit)
  local sum = left_of(counts, now)[place]
  local lacking = held + math.max(more, FREE_FIRST * limit) - limit
  if sum == 0 and lacking > 0 then
    return RATED
  end
  return math.max(1, math.min(RETRY_MOST, math.ceil(lacking * RATED / math.max(sum, 1e-9))))
end

-- Adds to what has left of late what this script took away.
local function note_departures(counts)
  local had = counts.had
  local gone = { had.waiting_sequences - counts.waiting_sequences, had.waiting_tokens - counts.waiting_tokens,
    (had.bytes - had.ended_bytes) - (counts.bytes - counts.ended_bytes), had.streams - counts.streams }
  if math.max(unpack(gone)) > 0 then
    local left = left_of(counts, now)
    for i = 1, 4 do
      left[i + 1] = left[i + 1] + math.max(0, gone[i])
    end
    return { "left", cmsgpack.pack(left) }
  end
  return {}
end

-- Writes what has changed, once, behind all else that a script does. A tenant of which nothing is left has no counts.
local function settle()
  for key, counts in pairs(books) do
    local changed = note_departures(counts)
    for _, name in ipairs(COUNTED) do
      if counts[name] ~= counts.had[name] then
        changed[#changed + 1], changed[#changed + 2] = name, counts[name]
      end
    end
    if counts.tenant and counts.bytes == 0 then
      redis.call("HDEL", key, "left", unpack(COUNTED))
      redis.call("ZREM", HOLDERS, counts.tenant)
    elseif #changed > 0 then
      redis.call("HSET", key, unpack(changed))
      if counts.tenant and counts.bytes ~= counts.had.bytes then
        redis.call("ZADD", HOLDERS, counts.bytes, counts.tenant)
      end
    end
  end
end
