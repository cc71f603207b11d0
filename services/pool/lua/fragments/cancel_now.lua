-- include: keys publish end_sequence
local cancelled_now = 0 -- sequences that this script has ended as cancelled

-- Ends a sequence that no seat runs as cancelled.
local function cancel_now(id)
  local index = redis.call("STRLEN", P .. "tok:" .. id) / 4
  tell_end(id, index, END_CANCELLED)
  end_sequence(id, END_CANCELLED)
  cancelled_now = cancelled_now + 1
end
