-- Makes a gateway a listener of sequences and returns what the pool holds of them, in one script: no token falls between.
-- include: keys time gateways
--
-- KEYS 1  the pool's prefix
-- ARGV 1  gateway
--      2  msgpack [[id, index], ...]
-- Reply   for each: {} if unknown, else {prompt tokens, index, tokens from it on (packed), log probabilities from it on,
--         end (opaque) or ""}; index is less than the one asked for if the pool holds less
local gateway = ARGV[1]
local wanted = cmsgpack.unpack(ARGV[2])
stamp()
forget_gateways()
register(gateway)
local snapshots = {}
for i, want in ipairs(wanted) do
  local id = want[1]
  local sequence = redis.call("HMGET", P .. "seq:" .. id, "state", "prompt_len", "end", "group")
  if sequence[1] then
    if sequence[1] ~= "ended" then
      listen(gateway, id, sequence[4])
    end
    local index = math.min(want[2], redis.call("STRLEN", P .. "tok:" .. id) / 4)
    snapshots[i] = { sequence[2], index, redis.call("GETRANGE", P .. "tok:" .. id, 4 * index, -1),
      redis.call("LRANGE", P .. "lp:" .. id, index, -1), sequence[3] or "" }
  else
    snapshots[i] = {}
  end
end
return snapshots
