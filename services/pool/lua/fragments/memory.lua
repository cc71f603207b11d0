-- include: keys
-- A server at its maxmemory refuses commands that may need memory, but inside a script only while the script has sent no
-- command that writes: every version of Redis and Valkey does.

-- Lets this script write however full the server's memory is. Changes nothing.
local function write_anyway()
  redis.call("HDEL", META, "")
end

-- Whether the server's memory is full, as long as this script has written nothing. Changes nothing.
local function memory_full()
  local reply = redis.pcall("SETRANGE", P .. "nothing", 0, "")
  return type(reply) == "table" and reply.err ~= nil and string.find(reply.err, "OOM", 1, true) ~= nil
end
