"""Triton kernels, one idea a file: the kernel, and a function that launches it over tensors."""
