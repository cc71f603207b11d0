"""The lean path on CUDA: Triton kernels and torch's products. Where there is no Triton, there is none."""
