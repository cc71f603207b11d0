"""Batches: the lines of a file, answered after all other requests."""
