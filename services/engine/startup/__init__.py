"""Loading an engine: choose device, dtype and backend, check the fast path, keep the memory for the next process."""
