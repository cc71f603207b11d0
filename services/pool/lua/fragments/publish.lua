-- include: keys time
-- A batch, of commits as of events, is five lists, which cmsgpack reads far faster than one list an item:
--   ids, indices, counts of tokens, all tokens (packed, one string), and for those with more to say
--   extras: position in the batch, [log probabilities (opaque), ...] or false, end (opaque) or false, by turns
local EVENTS_KEPT = 2048 -- entries for a gateway, about

-- One batch for each registered gateway, made when first asked for, after gateways were forgotten.
local outboxes
local function all_outboxes()
  if not outboxes then
    outboxes = {}
    for i, gateway in ipairs(redis.call("ZRANGE", GATEWAYS, 0, -1)) do
      outboxes[i] = { {}, {}, {}, {}, {}, size = 0, gateway = gateway, listening = P .. "listening:" .. gateway }
    end
  end
  return outboxes
end

-- Queues tokens (packed) from an index on, perhaps log probabilities of each, perhaps the end.
local function put(box, id, index, tokens, logprobs, blob)
  local n = box.size + 1
  box.size, box[1][n], box[2][n], box[3][n], box[4][n] = n, id, index, #tokens / 4, tokens
  if logprobs or blob then
    local extras, e = box[5], #box[5]
    extras[e + 1], extras[e + 2], extras[e + 3] = n, logprobs, blob
  end
end

-- Queues the end of a sequence for all who listen to it.
local function tell_end(id, index, blob)
  for _, box in ipairs(all_outboxes()) do
    if redis.call("SISMEMBER", box.listening, id) == 1 then
      put(box, id, index, "", false, blob)
    end
  end
end

-- Writes one entry for each gateway with events: <tick>-<n>. The n of a registration count up from 1, so that a reader
-- sees whether the stream was cut, or its tail lost, before it had read it; ticks never go back, so that it sees what
-- comes after that.
local function publish()
  for _, box in ipairs(outboxes or {}) do
    if box.size > 0 then
      local n = redis.call("HINCRBY", P .. "gateway:" .. box.gateway, "events", 1)
      redis.call("XADD", P .. "events:" .. box.gateway, "MAXLEN", "~", EVENTS_KEPT, string.format("%.0f-%d", tick, n),
        "e", cmsgpack.pack({ box[1], box[2], box[3], table.concat(box[4]), box[5] }))
    end
  end
end
