"""Systems in processes of their own, which get lines of JSON; see `process.py`, and the benchmarks that start them."""
