"""The parts of `python -m load.nodes`, one module each."""
