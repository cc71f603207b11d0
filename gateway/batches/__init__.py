"""Batches: the lines of a file, answered behind everybody else."""
