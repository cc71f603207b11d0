"""Rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch

from services.engine.families.spec import DecoderSpec


def rotary_table(spec: DecoderSpec, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [length, head_dim / 2] in float32, of positions below `length`, as transformers makes them."""
    angles = torch.arange(length, dtype=torch.float32)[:, None] * torch.tensor(spec.frequencies, dtype=torch.float32)
    return angles.cos() * spec.rotary_scale, angles.sin() * spec.rotary_scale


def frequencies(config: Any) -> tuple[tuple[float, ...], float]:
    """Of transformers' config, as in DecoderSpec, with `rotary_scale`."""
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        turns, scale = ROPE_INIT_FUNCTIONS[kind](config)
        return tuple(turns.tolist()), scale
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shares = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return tuple((1.0 / (config.rope_parameters["rope_theta"] ** shares)).tolist()), 1.0
