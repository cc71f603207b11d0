local CHUNK = 4000 -- arguments of one command; unpack holds less than 8,000

-- `command key ids...` for any number of ids, at least one: the replies in one table.
local function bulk(command, key, ids)
  local replies = redis.call(command, key, unpack(ids, 1, math.min(CHUNK, #ids)))
  for first = CHUNK + 1, #ids, CHUNK do
    for _, reply in ipairs(redis.call(command, key, unpack(ids, first, math.min(first + CHUNK - 1, #ids)))) do
      replies[#replies + 1] = reply
    end
  end
  return replies
end
