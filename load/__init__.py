"""Load: Locust users, traces, benchmarks."""
