"""Quantized transformers folders: a file for each format, and the tensors that they stand for."""
