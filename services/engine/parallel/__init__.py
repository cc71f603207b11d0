"""One engine in several processes: pipeline stages, each of tensor-parallel ranks (paper, section 4.1)."""
