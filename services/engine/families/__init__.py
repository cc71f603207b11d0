"""The model families that the fast path runs: one description of their layers, and a file for each family."""
