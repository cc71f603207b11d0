"""Benchmarks of the server, the scheduler and the engine; load/README.md lists the commands."""
