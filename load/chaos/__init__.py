"""Chaos: faults under load, and a checker of the histories of clients and pool."""
