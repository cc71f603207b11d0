"""The table of rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def rotary_table(config: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [length, head_dim / 2] in float32, of positions below `length`, as transformers makes them."""
    frequencies, scale = _frequencies(config)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos() * scale, angles.sin() * scale


def _frequencies(config: Any) -> tuple[torch.Tensor, float]:
    """Radians a position [head_dim / 2], float32, and what cosines and sines are multiplied by."""
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config)
        return frequencies, scale
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shares = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return 1.0 / (config.rope_parameters["rope_theta"] ** shares), 1.0
