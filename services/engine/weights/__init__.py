"""Weights as they are stored: safetensors, blocks of GGUF files, the quantization methods of transformers folders, and
random weights of the same forms. `folder.py` opens a folder of any of them."""
