-- include: keys time
-- How fast sequences are claimed while some wait, of all tenants and of each: `claimed` in `took` us, two sums that fade
-- with what is claimed, so that they tell of about the last two times of what runs at once. A claim that leaves nothing
-- waiting shows no rate, since it would have taken more. Lines of batches do not count. The sums are part of the counts
-- (see counts); `since` is the time (us) of the last claim, or when some began to wait.
local FEWEST = 16 -- sequences; what became of fewer says nothing of a rate
local TOO_SOON = 2000000 -- us after which it says something that few were claimed
local REMEMBERED = 60000000 -- us, about, that a rate is remembered while nothing waits

local function most_at_once(counts)
  return math.max(FEWEST, counts.running)
end

-- Us since the last claim, less those in which the server was away.
local function since_claim(counts)
  return math.max(0, now - math.max(counts.since, resumed))
end

-- Whether enough were claimed: while fewer than run were, the rate may be far less than it seems.
local function rate_known(counts)
  return counts.claimed >= most_at_once(counts)
end

-- Us until so many are claimed, by Little's law. Where no rate is known: at least so many, since at a greater rate all
-- that run had ended by now; none, if that is too soon to say.
local function expected_wait(counts, before)
  local took = counts.took + since_claim(counts)
  if took < TOO_SOON and not rate_known(counts) then
    return 0
  end
  return before * took / math.max(counts.claimed, most_at_once(counts))
end

-- Adds to the sums what this script claimed. `backlog` sequences wait, `had_backlog` did when it began.
local function note_claims(counts)
  local begins = counts.backlog > 0 and counts.had_backlog == 0
  if counts.claims == 0 and not begins then
    return
  end
  local keep = math.exp(-counts.claims / (2 * most_at_once(counts)))
  if begins then
    keep = keep * math.exp(math.min(0, counts.since - now) / REMEMBERED)
  end
  counts.claimed, counts.took = keep * counts.claimed, keep * counts.took
  if counts.claims > 0 and counts.backlog > 0 then
    counts.claimed = counts.claimed + counts.claims
    counts.took = counts.took + (begins and 0 or since_claim(counts))
  end
  counts.since = now
end
