"""The table of rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM


def rotary_table(config: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [length, head_dim / 2] in float32, of positions below `length`, as transformers makes them."""
    with torch.device("meta"):
        kind = type(AutoModelForCausalLM.from_config(config).model.rotary_emb)
    cosines, sines = kind(config)(torch.zeros(1), torch.arange(length)[None])
    half = cosines.shape[-1] // 2
    return cosines[0, :, :half].contiguous(), sines[0, :, :half].contiguous()
