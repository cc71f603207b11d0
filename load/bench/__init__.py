"""The engine beside the floor of its machine, on a CPU or on CUDA, without Ray or Redis."""
