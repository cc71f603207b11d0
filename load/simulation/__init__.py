"""The simulator: the real loop and scheduler with the pool's reference model, on virtual time, around engines that
only cost time."""
