-- The arguments of a script: one msgpack map of names to values, which each script's header lists. A value that is absent
-- is false. To read a name that was not given is an error.

local function named(values)
  return setmetatable(values, { __index = function(_, name)
    error("the script was given no argument " .. name)
  end })
end

local args = named(cmsgpack.unpack(ARGV[1]))
