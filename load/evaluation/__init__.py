"""The evaluation that `make evaluate` runs: measurements, tables and plots, each part by name."""
