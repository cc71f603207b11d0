"""The `orca` command. It may import every other package; none imports it."""
