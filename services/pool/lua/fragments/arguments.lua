-- What goes in and out of a script, by name. The arguments are one msgpack map of names to values, which each script's header lists. A value that is absent
-- is false. To read a name that was not given is an error.

local function named(values)
  return setmetatable(values, { __index = function(_, name)
    error("the script was given no argument " .. name)
  end })
end

-- A reply, or a part of one, that its reader takes by name: [name, value, ...].
local function by_name(values)
  local flat = {}
  for name, value in pairs(values) do
    flat[#flat + 1] = name
    flat[#flat + 1] = value
  end
  return flat
end

local args = named(cmsgpack.unpack(ARGV[1]))
