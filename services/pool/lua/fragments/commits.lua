-- include: keys publish end_sequence bulk turns
-- The items from the `from`-th on (1 is the first); false for none.
local function tail(items, from)
  if not items or from == 1 then
    return items
  end
  local rest = {}
  for i = from, #items do
    rest[#rest + 1] = items[i]
  end
  return rest
end

-- The i-th commit: appends to one sequence what it does not have yet: committed tokens never change. Returns its end
-- (blob), or false if it goes on; and how many tokens there are if that is less than the index: then nothing happened.
-- What is to be charged is added to its payer's `tokens_of`.
local function append(boxes, heard, tokens_of, i, id, index, tokens, logprobs, blob)
  local key = P .. "tok:" .. id
  local have = redis.call("STRLEN", key) / 4
  if index > have then
    return false, have
  elseif index < have then
    local skip = math.min(have - index, #tokens / 4)
    tokens, logprobs, index = string.sub(tokens, 4 * skip + 1), tail(logprobs, skip + 1), have
  end
  if tokens ~= "" then
    redis.call("APPEND", key, tokens)
    for _, one in ipairs(logprobs or {}) do
      redis.call("RPUSH", P .. "lp:" .. id, one)
    end
  elseif not blob then
    return false
  end
  local now_has = have + #tokens / 4
  local due = (blob and now_has or now_has - now_has % CHARGED_AT_ONCE) - (have - have % CHARGED_AT_ONCE)
  if due > 0 then
    local payer = redis.call("HGET", P .. "seq:" .. id, "payer")
    tokens_of[payer] = (tokens_of[payer] or 0) + due
  end
  for b = 1, #boxes do
    if heard[b][i] == 1 then
      put(boxes[b], id, index, tokens, logprobs, blob)
    end
  end
  return blob
end

-- Commits a batch for the seat, in order. Returns three tables by id: those that ended, those that are not the seat's
-- (any more), and of those that lack tokens before the commit's index how many they have.
local function commit_all(seat, batch)
  local ids, indices, counts, tokens, extras = unpack(batch)
  local over, foreign, have, extra_of, first = {}, {}, {}, {}, 1
  if #ids == 0 then
    return over, foreign, have
  end
  local boxes, heard, tokens_of = all_outboxes(), {}, {} -- heard: for each gateway, for each commit, 1 if it listens
  for b, box in ipairs(boxes) do
    heard[b] = bulk("SMISMEMBER", box.listening, ids)
  end
  local owned = bulk("SMISMEMBER", P .. "running:" .. seat, ids)
  for e = 1, #extras, 3 do
    extra_of[extras[e]] = e
  end
  for i = 1, #ids do
    local id, last, e, logprobs, blob = ids[i], first + 4 * counts[i] - 1, extra_of[i], false, false
    if e then
      logprobs, blob = extras[e + 1], extras[e + 2]
    end
    if owned[i] == 0 then
      foreign[id] = true
    elseif not over[id] and not have[id] then
      blob, have[id] = append(boxes, heard, tokens_of, i, id, indices[i], string.sub(tokens, first, last),
        logprobs, blob)
      if blob then
        over[id] = true
        redis.call("SREM", P .. "running:" .. seat, id)
        redis.call("SREM", P .. "cancelled:" .. seat, id)
        end_sequence(id, blob)
      end
    end
    first = last + 1
  end
  charge(tokens_of)
  return over, foreign, have
end
