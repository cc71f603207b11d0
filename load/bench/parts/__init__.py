"""The parts of the benchmark, a module each; see `load.bench`."""
