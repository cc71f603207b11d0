"""Triton kernels. Each file has a kernel and a function that launches it over tensors."""
