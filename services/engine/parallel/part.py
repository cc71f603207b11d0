"""Part: what one rank computes of a model, on whatever device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape

Sum = Callable[[torch.Tensor], torch.Tensor]  # of what each rank of a stage has, which may be made in that


class Pass(Protocol):
    """One batch on its way through a part. x is [tokens, hidden], float32."""

    def embed(self) -> torch.Tensor:
        """What this rank has of x before the first layer: zeros for tokens and positions that are another's."""
        ...

    def run(self, x: torch.Tensor, sum_up: Sum | None) -> None:
        """Add to x what the layers of the part do, each half of a layer after the ranks of the stage have summed it up;
        None where one rank has all of a layer."""
        ...

    def logits(self, x: torch.Tensor, tokens: Numbers) -> torch.Tensor:
        """[tokens, this rank's part of the vocabulary] after these tokens, flat indices among the batch's `wanted`;
        float32, there until the next call."""
        ...


class Part(Protocol):
    """A stage's layers, of each a shard; in the first stage a shard of the embedding, in the last of the vocabulary.
    What it shares with Decoder is as there."""

    path: str
    weight_dtype: torch.dtype
    cache_dtype: torch.dtype
    device: torch.device
    bytes_read: int  # of the checkpoint

    @property
    def layers(self) -> list[LayerShape]: ...

    def bind(self, cache: KVCache) -> None: ...

    def begin(self, batch: FlatBatch) -> Pass: ...
