"""The cluster of one `orca serve`: the process that holds Ray, its environment, and all its processes."""
