"""Load: Locust users, benchmarks, the simulator and chaos; see docs/load.md."""
