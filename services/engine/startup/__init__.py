"""What happens before the first iteration: choose device, dtype and backend, check the fast path, load, warm up."""
