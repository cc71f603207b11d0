"""Quantized transformers folders: the methods that store weights, and the tensors that they stand for."""
