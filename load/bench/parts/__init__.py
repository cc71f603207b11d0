"""The parts of `python -m load.bench`, one module each."""
