"""Decoder: what runs a flat batch through a model's layers."""

from __future__ import annotations

from typing import Protocol

import torch

from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape


class Decoder(Protocol):
    """A loaded model. `path` names the way it computes, as a part of an engine's numerics."""

    path: str
    weight_dtype: torch.dtype  # of the products' weights as stored
    cache_dtype: torch.dtype  # of keys and values

    @property
    def layers(self) -> list[LayerShape]: ...

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on."""
        ...

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """Logits [sampling, vocab] after the last token of each request that is complete, there until the next call;
        None where another rank has them."""
        ...

    def logits_after(self, tokens: Numbers) -> torch.Tensor | None:
        """Logits [tokens, vocab] after these tokens, flat indices of some `scored` of the last batch, which still is
        there; where and for how long as above."""
        ...
