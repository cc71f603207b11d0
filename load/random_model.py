"""A transformers folder with random weights, which can be served: speed, and whether tokens stay the same, can be
measured without the weights of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from load.tokenizer import save_tokenizer
from load.workloads import BEGINNINGS, QUESTIONS, WORDS
from services.engine.weights.random_tensors import RandomTensors

TEXT = " ".join((*WORDS, *QUESTIONS, *BEGINNINGS))  # each word is a token, if the vocabulary has room for it


def save_random_model(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Write a model of transformers' `config` to `folder`, which is created: a tokenizer with all its ids, and weights
    in `dtype`. They are drawn on `device`: a GPU does that in a tenth of the time."""
    drawn = RandomTensors(config, dtype, device)
    config.dtype = dtype
    config.save_pretrained(folder)
    save_file({name: drawn.read(name).cpu() for name in drawn.names}, folder / "model.safetensors", {"format": "pt"})
    save_tokenizer(folder, config.vocab_size, TEXT)
