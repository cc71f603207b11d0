-- include: begin
-- What a script tells other processes: events to gateways, a ring of the bell to idle seats.
--
-- A batch, of commits or of events, is five lists, because cmsgpack reads them far faster than one list per item:
--   ids, indices, numbers of tokens, all tokens (packed into one string), extras
-- `extras` has three elements for each item with log probabilities or an end: its position in the batch,
-- [log probabilities (opaque), ...] or false, end (opaque) or false.
local EVENTS_KEPT = 2048 -- approximate number of entries in a gateway's stream

-- One batch for each registered gateway. Made at the first call, which must come after expired gateways were forgotten.
local outboxes
local function get_outboxes()
  if not outboxes then
    outboxes = {}
    for i, gateway in ipairs(redis.call("ZRANGE", GATEWAYS, 0, -1)) do
      outboxes[i] = { {}, {}, {}, {}, {}, size = 0, gateway = gateway, listening = P .. "listening:" .. gateway }
    end
  end
  return outboxes
end

-- Queues tokens (packed) from an index on. `logprobs` (one for each token) and `blob`, the end, may be false.
local function queue_event(box, id, index, tokens, logprobs, blob)
  local n = box.size + 1
  box.size, box[1][n], box[2][n], box[3][n], box[4][n] = n, id, index, #tokens / 4, tokens
  if logprobs or blob then
    local extras, e = box[5], #box[5]
    extras[e + 1], extras[e + 2], extras[e + 3] = n, logprobs, blob
  end
end

-- Queues the end of a sequence for all gateways that listen to it.
local function queue_end(id, index, blob)
  for _, box in ipairs(get_outboxes()) do
    if redis.call("SISMEMBER", box.listening, id) == 1 then
      queue_event(box, id, index, "", false, blob)
    end
  end
end

-- Writes one stream entry, <tick>-<n>, for each gateway that has events. `n` counts from 1 within a registration, so
-- that a reader notices if entries that it has not read were trimmed or lost. Ticks never decrease, so that it still
-- receives what comes after that.
local function publish_events()
  for _, box in ipairs(outboxes or {}) do
    if box.size > 0 then
      local n = redis.call("HINCRBY", P .. "gateway:" .. box.gateway, "events", 1)
      redis.call("XADD", P .. "events:" .. box.gateway, "MAXLEN", "~", EVENTS_KEPT, string.format("%.0f-%d", tick, n),
        "e", cmsgpack.pack({ box[1], box[2], box[3], table.concat(box[4]), box[5] }))
    end
  end
end

-- Wakes every seat that waits for its bell. A bell holds one ring at most.
local function wake_idle_seats()
  for _, seat in ipairs(redis.call("SMEMBERS", IDLE)) do
    redis.call("LPUSH", P .. "bell:" .. seat, 1)
    redis.call("LTRIM", P .. "bell:" .. seat, 0, 0)
  end
  redis.call("DEL", IDLE)
end
