-- Makes a gateway listen to sequences and returns what the pool holds of them. Both happen in one script, so that no
-- token is missed in between.
-- include: gateways
--
-- Arguments
--   gateway
--   wanted   [[id, index], ...]
-- Reply   for each: {} if unknown, else {prompt tokens, index, tokens from that index on (packed), log probabilities from
--         that index on, end (opaque) or ""}; the index is lower than the requested one if the pool holds fewer tokens
local gateway = args.gateway
begin()
forget_expired_gateways()
register_gateway(gateway)
local snapshots = {}
for i, want in ipairs(args.wanted) do
  local id = want[1]
  local sequence = redis.call("HMGET", P .. "seq:" .. id, "state", "prompt_len", "end", "group")
  if sequence[1] then
    if sequence[1] ~= "ended" then
      add_listener(gateway, id, sequence[4])
    end
    local index = math.min(want[2], redis.call("STRLEN", P .. "tok:" .. id) / 4)
    snapshots[i] = { sequence[2], index, redis.call("GETRANGE", P .. "tok:" .. id, 4 * index, -1),
      redis.call("LRANGE", P .. "lp:" .. id, index, -1), sequence[3] or "" }
  else
    snapshots[i] = {}
  end
end
return snapshots
