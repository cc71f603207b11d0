-- include: begin
-- How fast sequences are claimed while others wait, over all tenants and for each: `claimed` sequences in `took` us.
-- Both sums decay with each claim, so that they cover about the last two times as many claims as sequences run. A claim
-- that leaves nothing waiting shows no rate, because the seat would have taken more. Lines of batches do not count. The
-- sums are part of the counts (counts.lua). `since` is the time (us) of the last claim, or at which sequences began to
-- wait.
local MIN_SAMPLE = 16 -- sequences; fewer do not show a rate
local MIN_TIME = 2000000 -- us after which few claims show that the rate is low
local IDLE_DECAY = 60000000 -- us; time constant with which a rate is forgotten while nothing waits

local function sample_size(counts)
  return math.max(MIN_SAMPLE, counts.running)
end

-- Time (us) since the last claim, without the time in which the server was away or all engines slept.
local function time_since_claim(counts)
  return math.max(0, now - math.max(counts.since, resumed))
end

-- Whether enough sequences were claimed: after fewer claims than sequences run, the true rate may be far lower.
local function rate_known(counts)
  return counts.claimed >= sample_size(counts)
end

-- The expected time (us) until `before` sequences are claimed, by Little's law. Without a known rate this is a lower
-- bound, because at a greater rate all running sequences would have ended by now; or 0 if it is too early to say.
local function expected_wait(counts, before)
  local took = counts.took + time_since_claim(counts)
  if took < MIN_TIME and not rate_known(counts) then
    return 0
  end
  return before * took / math.max(counts.claimed, sample_size(counts))
end

-- Adds this script's claims to the sums. `backlog` sequences wait; `had_backlog` waited when the script began.
local function record_claims(counts)
  local begins = counts.backlog > 0 and counts.had_backlog == 0
  if counts.claims == 0 and not begins then
    return
  end
  local keep = math.exp(-counts.claims / (2 * sample_size(counts)))
  if begins then
    keep = keep * math.exp(math.min(0, counts.since - now) / IDLE_DECAY)
  end
  counts.claimed, counts.took = keep * counts.claimed, keep * counts.took
  if counts.claims > 0 and counts.backlog > 0 then
    counts.claimed = counts.claimed + counts.claims
    counts.took = counts.took + (begins and 0 or time_since_claim(counts))
  end
  counts.since = now
end
