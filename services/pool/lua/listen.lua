-- Makes a gateway listen to sequences and returns what the pool holds of them. Both happen in one script, so that no
-- token is missed in between.
-- include: gateways
--
-- Arguments
--   gateway
--   wanted   [[id, index], ...]
-- Reply   for each: {} if unknown, else, by name
--   prompt_tokens
--   index      that of the request; lower if the pool holds fewer tokens
--   tokens     from that index on (packed)
--   logprobs   from that index on [opaque, ...]
--   end        opaque, or ""
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
    snapshots[i] = by_name({ prompt_tokens = sequence[2], index = index,
      tokens = redis.call("GETRANGE", P .. "tok:" .. id, 4 * index, -1),
      logprobs = redis.call("LRANGE", P .. "lp:" .. id, index, -1), ["end"] = sequence[3] or "" })
  else
    snapshots[i] = {}
  end
end
return snapshots
