"""The ways to run a decoder's layers: `stock` (transformers' own layers), `cpu` (compiled kernels), `cuda` (Triton)."""
