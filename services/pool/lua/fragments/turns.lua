-- include: begin class
-- Tenants take turns by tokens served, as in the Virtual Token Counter (VTC) of "Fairness in Serving Large Language
-- Models" (OSDI 2024). The next turn belongs to the tenant whose first sequence is of the lowest class; among those, to
-- the one with the lowest counter; among those, to the one whose last turn was first, or whose
-- first sequence has the lowest rank, if it had none. So a tenant that joins goes before one that has just had a turn.
local PROMPT_TOKEN, OUTPUT_TOKEN = 1, 2 -- what a token adds to its tenant's counter, as in the VTC paper
local CHARGED_AT_ONCE = 8 -- output tokens of a running sequence; charging each one would cost more
local COUNTERS_KEPT = 3600000 -- ms that a tenant's counters are kept while nothing of it waits
-- The turns of lines of batches: later than any class plus its ageing, and small enough that a half is still exact.
local LAST_TURNS = 4e15

local up_to_date = {} -- tenants whose entry in TURNS is current; a charge only moves a turn back
local update_turn

-- The first turn with a score in this range, and its tenant.
local function first_turn(least, most)
  while true do
    local turn = redis.call("ZRANGEBYSCORE", TURNS, least, most, "LIMIT", 0, 1)[1]
    local tenant = turn and string.sub(turn, 33)
    if not turn or up_to_date[tenant] then
      return turn, tenant
    end
    update_turn(tenant)
  end
end

-- The name of the counter and the class of a tenant whose first sequence is `id` and whose last turn was at `last`.
-- With ageing, the class is lower by 1 for each `ageing` us that the tenant has waited longer without a turn. A requeued
-- sequence gets half a class less, which puts it before all others of its class, because it has had its turn.
local function counter_and_class(id, last)
  local s = redis.call("HMGET", P .. "seq:" .. id, "group", "payer")
  local priority, ageing, arrival = class_of(s[1])
  local class = is_line(priority) and LAST_TURNS
    or ageing > 0 and priority + math.floor(math.max(arrival, last) / ageing) or 0
  return counter_of(priority), s[2] and class - 0.5 or class
end

-- The lowest counter with which a tenant may join the turns of this class: that of the first tenant there, or the
-- largest with which any tenant had a turn. So a tenant that asks for nothing saves up no turns.
local function joining_count(counter, class)
  local first = first_turn(class, class)
  return tonumber(first and string.sub(first, 1, 16) or redis.call("HGET", META, counter) or 0)
end

-- Writes the tenant's entry in TURNS, or removes it if nothing of the tenant waits. With `skipped`, the first `skipped`
-- sequences do not count; such an entry is valid within this script only.
update_turn = function(tenant, skipped)
  local key = P .. "turn:" .. tenant
  local had = redis.call("HMGET", key, "turn", "counter", "served", "lines", "last")
  local first = redis.call("ZRANGE", P .. "waiting:" .. tenant, skipped or 0, skipped or 0, "WITHSCORES")
  local turn, counter, score, _
  if first[1] then
    counter, score = counter_and_class(first[1], tonumber(had[5] or 0))
    local count = tonumber(had[counter == "served" and 3 or 4] or 0)
    if not skipped and had[2] ~= counter then
      _ = had[1] and redis.call("ZREM", TURNS, had[1])
      if score == math.floor(score) then -- a tenant whose first sequence was requeued does not join anew
        count = math.max(count, joining_count(counter, score))
      end
      redis.call("HSET", key, "counter", counter, counter, string.format("%.0f", count))
      redis.call("PERSIST", key)
    end
    turn = string.format("%016.0f%016.0f", count, tonumber(had[5] or first[2])) .. tenant
  elseif not skipped then
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
  up_to_date[tenant] = true
end

-- Puts a sequence into its tenant's queue.
local function enqueue(tenant, id, rank)
  redis.call("ZADD", P .. "waiting:" .. tenant, rank, id)
  if redis.call("ZRANK", P .. "waiting:" .. tenant, id) == 0 then
    update_turn(tenant)
  end
end

-- Takes a sequence out of its tenant's queue.
local function dequeue(tenant, id)
  local rank = redis.call("ZRANK", P .. "waiting:" .. tenant, id)
  redis.call("ZREM", P .. "waiting:" .. tenant, id)
  if rank == 0 then
    update_turn(tenant)
  end
end

-- Charges output tokens. `tokens_of` maps <counter>:<tenant> to a number of tokens.
local function charge_output(tokens_of)
  for payer, tokens in pairs(tokens_of) do
    local counter, tenant = string.match(payer, "^(%l+):(.*)$")
    local count = OUTPUT_TOKEN * tokens
    up_to_date[tenant] = nil
    if redis.call("HINCRBY", P .. "turn:" .. tenant, counter, count) == count then
      update_turn(tenant) -- its counters had expired; this sets their time to live again
    end
  end
end
