"""Latent attention (DeepSeek): the KV cache keeps the latent vector of a token in place of the keys and values of all
heads.

transformers' layers expand latent vectors by the method `expand_kv`, just before attention. Here it returns them as the
keys and values of one head. The products that it leaves out are made with the queries before attention, and with the
outputs after it, which is the same but for the order of sums.
"""

from __future__ import annotations

from typing import Any

import torch

LATENT = "orca_latent"  # the attribute of a layer's attention that holds a Latent


class Latent:
    """The two halves of the expansion of one layer, as views of its weight [heads * (nope + value_dim), latent]."""

    def __init__(self, attention: Any) -> None:
        self._nope: int = attention.qk_nope_head_dim
        weight = attention.kv_b_proj.weight
        halves = weight.unflatten(0, (-1, self._nope + attention.v_head_dim))
        self._keys, self._values = halves.split([self._nope, attention.v_head_dim], 1)  # [heads, dim, latent]

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """[1, heads, tokens, nope + rope] -> [1, heads, tokens, latent + rope]."""
        return torch.cat([queries[..., : self._nope] @ self._keys, queries[..., self._nope :]], -1)

    def outputs(self, outputs: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, latent] -> [tokens, heads, value_dim]."""
        expanded: torch.Tensor = outputs.transpose(0, 1) @ self._values.transpose(1, 2)
        return expanded.transpose(0, 1)


def keep_latent(model: Any) -> None:
    """Let the layers of a loaded model with latent attention pass latent vectors to attention."""
    for attention in model.modules():
        if hasattr(attention, "expand_kv") and type(attention.kv_b_proj) is torch.nn.Linear:
            assert attention.kv_b_proj.bias is None, "a bias of latent keys and values"
            setattr(attention, LATENT, Latent(attention))
            attention.expand_kv = _as_one_head


def _as_one_head(latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of `expand_kv`: latent [1, 1, tokens, latent] and keys with positions [1, 1, tokens, rope]."""
    return torch.cat([latent, rotated], -1), latent
