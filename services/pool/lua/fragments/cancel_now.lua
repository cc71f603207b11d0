-- include: keys publish end_sequence
-- Ends a sequence that no seat runs as cancelled.
local function cancel_now(id)
  local index = redis.call("STRLEN", P .. "tok:" .. id) / 4
  tell_end(id, index, END_CANCELLED)
  end_sequence(id, END_CANCELLED)
end
