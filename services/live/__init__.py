"""The live feed: what engines compute, iteration by iteration, for pages and terminals. It may lose frames."""
