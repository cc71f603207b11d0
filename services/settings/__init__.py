"""The settings of a server: what they are, and the flags, variables and files that they are read from."""
