"""Load: Locust users, benchmarks, the simulator and chaos; see load/README.md."""
