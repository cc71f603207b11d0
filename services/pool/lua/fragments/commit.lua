-- include: end_sequence turns patience
-- Commits: a scheduler appends tokens to its sequences and ends them.

-- The items from number `from` on (the first is 1); `items` itself if that is all, or if it is false.
local function slice_from(items, from)
  if not items or from == 1 then
    return items
  end
  local rest = {}
  for i = from, #items do
    rest[#rest + 1] = items[i]
  end
  return rest
end

-- Applies the i-th commit of a batch: appends the tokens that the sequence does not have yet, because committed tokens
-- never change. Returns its end (blob), or false if it goes on. If the commit begins behind the sequence's last token, it
-- changes nothing and also returns the number of tokens that the sequence has.
-- `outboxes` are those of gateways that listen to anything; `listens[b][i]` is 1 if the gateway of outbox `b` listens to
-- this sequence.
-- Adds the tokens to charge to `tokens_of`, by payer.
local function append_commit(outboxes, listens, tokens_of, i, id, index, tokens, logprobs, blob)
  local key = P .. "tok:" .. id
  local have = redis.call("STRLEN", key) / 4
  if index > have then
    return false, have
  elseif index < have then
    local skip = math.min(have - index, #tokens / 4)
    tokens, logprobs, index = string.sub(tokens, 4 * skip + 1), slice_from(logprobs, skip + 1), have
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
  for b = 1, #outboxes do
    if listens[b][i] == 1 then
      queue_event(outboxes[b], id, index, tokens, logprobs, blob)
    end
  end
  return blob
end

-- Applies a batch of commits of the seat, in order (its format is in notify.lua). Returns three tables by id: sequences
-- that ended; sequences that are not, or no longer, the seat's; and, for sequences that lack tokens before the commit's
-- index, the number of tokens that they have. `most_wait` is the bound on the expected wait (us).
local function commit_all(seat, batch, most_wait)
  local ids, indices, counts, tokens, extras = unpack(batch)
  local ended, foreign, lacking, extra_of, first = {}, {}, {}, {}, 1
  if #ids == 0 then
    return ended, foreign, lacking
  end
  local outboxes, listens, tokens_of = {}, {}, {}
  for _, box in ipairs(get_outboxes()) do
    if redis.call("EXISTS", box.listening) == 1 then -- an idle gateway would cost as much as a busy one
      outboxes[#outboxes + 1] = box
      listens[#outboxes] = call_in_chunks("SMISMEMBER", box.listening, ids)
    end
  end
  local owned = call_in_chunks("SMISMEMBER", P .. "running:" .. seat, ids)
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
    elseif not ended[id] and not lacking[id] then
      blob, lacking[id] = append_commit(outboxes, listens, tokens_of, i, id, indices[i],
        string.sub(tokens, first, last), logprobs, blob)
      if blob then
        ended[id] = true
        redis.call("SREM", P .. "running:" .. seat, id)
        redis.call("SREM", P .. "cancelled:" .. seat, id)
        learn_patience(id, most_wait)
        end_sequence(id, blob)
      end
    end
    first = last + 1
  end
  charge_output(tokens_of)
  return ended, foreign, lacking
end
