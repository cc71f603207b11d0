-- include: keys publish end_sequence
local CHUNK = 1000 -- arguments of one command; unpack holds less than 8,000

-- `command key ids...` for any number of ids: the replies in one table.
local function bulk(command, key, ids)
  local replies = {}
  for first = 1, #ids, CHUNK do
    local part = redis.call(command, key, unpack(ids, first, math.min(first + CHUNK - 1, #ids)))
    for i = 1, #part do
      replies[first + i - 1] = part[i]
    end
  end
  return replies
end

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

-- Appends to one sequence what it does not have yet of {id, index, tokens, log probabilities or false, end or false}.
-- Committed tokens never change. Returns the event, or nil when nothing came about.
local function append(commit)
  local id, index, tokens, logprobs, blob = commit[1], commit[2], commit[3], commit[4], commit[5]
  local key = P .. "tok:" .. id
  local have = redis.call("STRLEN", key) / 4
  if index > have then
    tokens, logprobs, index, blob = "", false, have, END_LOST_TOKENS
  elseif index < have then
    local skip = math.min(have - index, #tokens / 4)
    tokens, logprobs, index = string.sub(tokens, 4 * skip + 1), tail(logprobs, skip + 1), have
  end
  if #tokens > 0 then
    redis.call("APPEND", key, tokens)
    for _, one in ipairs(logprobs or {}) do
      redis.call("RPUSH", P .. "lp:" .. id, one)
    end
  elseif not blob then
    return nil
  end
  return { id, index, tokens, logprobs, blob }
end

-- Commits for the seat, in order. Returns the ids that are not the seat's (any more) and go on: it must drop them.
local function commit_all(seat, commits)
  local ids, owned, foreign = {}, {}, {}
  for i, commit in ipairs(commits) do
    ids[i] = commit[1]
  end
  local listeners = bulk("HMGET", LISTENERS, ids)
  for i, member in ipairs(bulk("SMISMEMBER", P .. "running:" .. seat, ids)) do
    owned[ids[i]] = member == 1
  end
  for i, commit in ipairs(commits) do
    local id = commit[1]
    local event = owned[id] and append(commit)
    if event then
      tell(listeners[i], event)
      if event[5] then
        owned[id] = false
        redis.call("SREM", P .. "running:" .. seat, id)
        redis.call("SREM", P .. "cancelled:" .. seat, id)
        end_sequence(id, event[5])
      end
    elseif not owned[id] and not commit[5] then
      foreign[#foreign + 1] = id
    end
  end
  return foreign
end
