"""The simulator: the real loop, scheduler and pool model on virtual time, around an engine that only costs time."""
