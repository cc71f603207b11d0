"""What runs before the first iteration: choose a device and a backend, load, check, warm up."""
