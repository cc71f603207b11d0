-- include: keys
-- What a sequence needs of an engine: tokens, and features, which only some of the builds have that serve the pool.
--
-- The build before compares tokens only. FAR tokens more, of a sequence that needs a feature and of a seat that has any,
-- keep its scripts from a claim: to them another seat can serve the sequence. It must not free bytes by that number, so the
-- bytes of a token are 0 where it finds them.
local FAR = 2 ^ 40

-- `tokens` as they are stored for a sequence or a seat with these features.
local function far_if(features, tokens)
  return #features > 0 and FAR + tokens or tokens
end

-- The tokens in what `far_if` made.
local function tokens_in(stored)
  return tonumber(stored) % FAR
end

-- The features of a seat with these `slots` and `features`. If the build before has the seat now, it has written the first
-- alone.
local function features_in(slots, features)
  return tonumber(slots) >= FAR and cmsgpack.unpack(features) or {}
end

-- Whether an engine of this size (tokens; 0: not known) and with these features can serve a sequence.
local function can_serve(longest, features, tokens, needs)
  local has = {}
  for _, feature in ipairs(features) do
    has[feature] = true
  end
  for _, need in ipairs(needs) do
    if not has[need] then
      return false
    end
  end
  return longest == 0 or tokens <= longest
end
