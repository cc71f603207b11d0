"""The lean path: families worth speed, described by one spec and run without transformers' layers."""
