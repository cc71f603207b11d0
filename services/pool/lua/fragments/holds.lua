-- include: keys reap
-- The seat's owner has `ids` and nothing else: what else runs there is given up. What is in `ids` but neither runs there
-- nor is `over` goes into `foreign`. Returns how many wait again.
local function keep_only(seat, ids, over, foreign, have)
  local held, waits = {}, 0
  for _, id in ipairs(ids) do
    held[id] = true
  end
  for _, id in ipairs(redis.call("SMEMBERS", P .. "running:" .. seat)) do
    if held[id] then
      held[id] = nil
    else
      redis.call("SREM", P .. "running:" .. seat, id)
      redis.call("SREM", P .. "cancelled:" .. seat, id)
      have[id] = nil
      waits = waits + (give_up(id) and 1 or 0)
    end
  end
  for id in pairs(held) do
    foreign[id] = not over[id] or nil
  end
  return waits
end
