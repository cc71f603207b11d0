"""The `orca` command. May import all; nothing imports it."""
