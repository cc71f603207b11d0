"""Benchmarks of the server, the scheduler and the engine; docs/load.md lists the commands."""
