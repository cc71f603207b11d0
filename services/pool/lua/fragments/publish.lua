-- include: keys
-- Events of this script: {id, index, tokens, log probabilities or false, end or false}, tokens as packed bytes.
local EVENTS_KEPT = 2048 -- per gateway, about
local outboxes, outboxes_of = {}, {}

-- Queues an event for the listeners, gateways separated by spaces.
local function tell(listeners, event)
  if not listeners then
    return
  end
  local boxes = outboxes_of[listeners]
  if not boxes then
    boxes = {}
    for gateway in string.gmatch(listeners, "%S+") do
      outboxes[gateway] = outboxes[gateway] or {}
      boxes[#boxes + 1] = outboxes[gateway]
    end
    outboxes_of[listeners] = boxes
  end
  for _, box in ipairs(boxes) do
    box[#box + 1] = event
  end
end

-- Writes one packed entry for each registered gateway. Entries of a registration count up from 1, so that
-- a reader sees whether the stream was cut before it had read it.
local function publish()
  for gateway, events in pairs(outboxes) do
    if redis.call("ZSCORE", GATEWAYS, gateway) then
      local n = redis.call("HINCRBY", P .. "gateway:" .. gateway, "events", 1)
      local registration = redis.call("HGET", P .. "gateway:" .. gateway, "registration")
      redis.call("XADD", P .. "events:" .. gateway, "MAXLEN", "~", EVENTS_KEPT, registration .. "-" .. n,
        "e", cmsgpack.pack(events))
    end
  end
end
