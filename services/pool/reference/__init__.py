"""The reference model of the pool: the same rules as the Lua scripts, in plain Python."""
