"""The decoders, one for each way to run layers.

- `stock`: transformers' own layers with our attention, for any family, on any device.
- `cpu`: the fast path on a CPU, compiled C++ kernels.
- `cuda`: the fast path on a GPU, Triton kernels.
"""
