-- include: keys time
-- Tenants take turns by tokens served, as in the Virtual Token Counter of "Fairness in Serving Large Language Models"
-- (OSDI 2024). The next turn is that of the tenant whose first sequence is of the earliest class, among those of one
-- class of the one whose counter is least, and among equal ones of the one whose first sequence has the least rank.
local PROMPT_TOKEN, OUTPUT_TOKEN = 1, 2 -- what a token adds to its tenant's counter, as in the article
local CHARGED_AT_ONCE = 8 -- output tokens of a sequence, but for the last: it costs less than to charge each
local COUNTERS_KEPT = 3600000 -- ms that a tenant's counters are kept while nothing of it waits
local LAST_CLASS = 4e15 -- of lines of batches: above what the time in us adds to a class, and a half is exact below it

local placed = {} -- tenants whose turn is known to be the one due: charges only make it a later one
local place

-- The first turn with a score in this range.
local function first_turn(least, most)
  while true do
    local turn = redis.call("ZRANGEBYSCORE", TURNS, least, most, "LIMIT", 0, 1)[1]
    local tenant = turn and string.sub(turn, 33)
    if not turn or placed[tenant] then
      return turn, tenant
    end
    place(tenant)
  end
end

-- Where a tenant stands whose first sequence is this one: the counter it goes by and the score of its turn. Where classes
-- count, one is worth `ageing` us of waiting without a turn, in steps. A sequence that was put back goes before all
-- others of its class: it had its turn.
local function standing(id, last)
  local s = redis.call("HMGET", P .. "seq:" .. id, "class", "payer")
  local counter, class = "served", 0
  if s[1] == "lines" then
    counter, class = "lines", LAST_CLASS
  elseif s[1] then
    local priority, ageing, arrival = string.match(s[1], "^(%S+) (%S+) (%S+)$")
    if tonumber(ageing) > 0 then -- else a class is worth nothing
      class = tonumber(priority) + math.floor(math.max(tonumber(arrival), last) / tonumber(ageing))
    end
  end
  return counter, s[2] and class - 0.5 or class
end

-- The least counter with which a tenant comes in among turns of this class: that of the first there, or else the
-- largest that had a turn. So nobody saves up turns while asking for none.
local function least_counter(counter, class)
  local first = first_turn(class, class)
  return tonumber(first and string.sub(first, 1, 16) or redis.call("HGET", META, counter) or 0)
end

-- Gives a tenant the turn that is due to it, or none where nothing of it waits. The first `passed` of its sequences are
-- passed over, if any are: such a turn is for the script's own use.
place = function(tenant, passed)
  local key = P .. "turn:" .. tenant
  local had = redis.call("HMGET", key, "turn", "counter", "served", "lines", "last")
  local first = redis.call("ZRANGE", P .. "waiting:" .. tenant, passed or 0, passed or 0, "WITHSCORES")
  local turn, counter, score, _
  if first[1] then
    counter, score = standing(first[1], tonumber(had[5] or 0))
    local count = tonumber(had[counter == "served" and 3 or 4] or 0)
    if not passed and had[2] ~= counter then
      _ = had[1] and redis.call("ZREM", TURNS, had[1])
      if score == math.floor(score) then -- who waits again because a seat died had never gone
        count = math.max(count, least_counter(counter, score))
      end
      redis.call("HSET", key, "counter", counter, counter, string.format("%.0f", count))
      redis.call("PERSIST", key)
    end
    turn = string.format("%016.0f%016.0f", count, tonumber(first[2])) .. tenant
  elseif not passed then
    redis.call("HDEL", key, "counter")
    redis.call("PEXPIRE", key, COUNTERS_KEPT)
  end
  if had[1] and had[1] ~= turn then
    redis.call("ZREM", TURNS, had[1])
    redis.call("HDEL", key, "turn")
  end
  if turn then
    redis.call("ZADD", TURNS, score, turn)
    _ = had[1] == turn or redis.call("HSET", key, "turn", turn)
  end
  placed[tenant] = true
end

-- Puts a sequence into its tenant's queue.
local function wait(tenant, id, rank)
  redis.call("ZADD", P .. "waiting:" .. tenant, rank, id)
  if redis.call("ZRANK", P .. "waiting:" .. tenant, id) == 0 then
    place(tenant)
  end
end

-- Takes a sequence out of its tenant's queue.
local function unwait(tenant, id)
  local rank = redis.call("ZRANK", P .. "waiting:" .. tenant, id)
  redis.call("ZREM", P .. "waiting:" .. tenant, id)
  if rank == 0 then
    place(tenant)
  end
end

-- Charges output tokens: <counter>:<tenant> -> how many.
local function charge(tokens_of)
  for payer, tokens in pairs(tokens_of) do
    local counter, tenant = string.match(payer, "^(%l+):(.*)$")
    local count = OUTPUT_TOKEN * tokens
    placed[tenant] = nil
    if redis.call("HINCRBY", P .. "turn:" .. tenant, counter, count) == count then
      place(tenant) -- its counters had been forgotten, and will be again
    end
  end
end
