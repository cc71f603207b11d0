"""Decoder: what computes logits from a flat batch. `backends/` has one implementation for each way to run layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from services.engine.adapters import AdapterSlots
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape, StateShape


class Decoder(Protocol):
    """A loaded model, or one rank's part of it."""

    weight_dtype: torch.dtype  # of the products' weights; of the numbers that integers in groups stand for
    weight_bytes: float  # of one of them in memory; with its share of scales, if it is in a group
    cache_dtype: torch.dtype  # of keys and values
    as_stored: Mapping[str, bool]  # see PackedModel; empty: no weight is kept as it is stored
    memory: int  # bytes of this decoder's weights
    reads_past_end: bool  # whether it reads, behind a mask, what blocks hold after a request's last token

    @property
    def adapters(self) -> AdapterSlots | None:
        """None: it computes no LoRA adapters."""
        ...

    @property
    def path(self) -> str:
        """A name of the way it computes, which is a part of the engine's numerics."""
        ...

    @property
    def layers(self) -> list[LayerShape]:
        """What each layer of this decoder keeps of a token, if it keeps any."""
        ...

    @property
    def layers_in_memory(self) -> list[LayerShape]:
        """What the layers keep of a token on all ranks whose KV caches share one memory with this one's."""
        ...

    @property
    def states(self) -> Sequence[StateShape]:
        """What layers keep in place of something of each token, once for each block."""
        ...

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on."""
        ...

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """Logits [sampled, vocab] after the last token of each request in `batch.sampled`; valid until the next call.
        None on a rank that does not sample."""
        ...

    def logits_after(self, tokens: Numbers) -> torch.Tensor | None:
        """Logits [tokens, vocab] after `tokens`, which are some of the last batch's `scored_tokens`; valid until the
        next call. None on a rank that does not sample."""
        ...
