-- include: keys
-- A batch, of commits as of events, is five lists, which cmsgpack reads far faster than one list an item:
--   ids, indices, counts of tokens, all tokens (packed, one string), and for those with more to say
--   extras: position in the batch, [log probabilities (opaque), ...] or false, end (opaque) or false, by turns
local EVENTS_KEPT = 2048 -- entries for a gateway, about
local outboxes, outboxes_of = {}, {}

-- The batches that these listeners, gateways separated by spaces, get from this script.
local function boxes_for(listeners)
  local boxes = {}
  for gateway in string.gmatch(listeners, "%S+") do
    outboxes[gateway] = outboxes[gateway] or { {}, {}, {}, {}, {} }
    boxes[#boxes + 1] = outboxes[gateway]
  end
  outboxes_of[listeners] = boxes
  return boxes
end

-- Queues for the listeners: tokens (packed) from an index on, perhaps log probabilities of each, perhaps the end.
local function tell(listeners, id, index, tokens, logprobs, blob)
  if not listeners then
    return
  end
  for _, box in ipairs(outboxes_of[listeners] or boxes_for(listeners)) do
    local n, extras = #box[1] + 1, box[5]
    box[1][n], box[2][n], box[3][n], box[4][n] = id, index, #tokens / 4, tokens
    if logprobs or blob then
      local e = #extras
      extras[e + 1], extras[e + 2], extras[e + 3] = n, logprobs, blob
    end
  end
end

-- Writes one entry for each registered gateway. Entries of a registration count up from 1, so that a reader sees
-- whether the stream was cut before it had read it.
local function publish()
  for gateway, box in pairs(outboxes) do
    if redis.call("ZSCORE", GATEWAYS, gateway) then
      box[4] = table.concat(box[4])
      local n = redis.call("HINCRBY", P .. "gateway:" .. gateway, "events", 1)
      local registration = redis.call("HGET", P .. "gateway:" .. gateway, "registration")
      redis.call("XADD", P .. "events:" .. gateway, "MAXLEN", "~", EVENTS_KEPT, registration .. "-" .. n,
        "e", cmsgpack.pack(box))
    end
  end
end
