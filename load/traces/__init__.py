"""One request's trace through all processes: a collector, and a picture of the spans."""
