"""A cluster of several Ray nodes on this machine, each in namespaces of its own, and trials on it (Linux, root)."""
