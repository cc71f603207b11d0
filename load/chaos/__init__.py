"""Chaos: faults under load, and a checker of what clients and the pool saw."""
