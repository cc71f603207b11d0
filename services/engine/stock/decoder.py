"""StockDecoder: any decoder of transformers, its own layers with our attention."""

from __future__ import annotations

from typing import Any

import torch

from services.engine.flat_batch import FlatBatch, Numbers
from services.engine.kv_cache import KVCache, LayerShape
from services.engine.stock.attention import attending
from services.engine.stock.sdpa import SdpaAttention


class StockDecoder:
    """Runs `model` flat as [1, total_tokens]."""

    path = "sdpa"

    def __init__(self, model: Any, layers: list[LayerShape]) -> None:
        self.layers = layers
        self._model = model
        self._device: torch.device = model.device
        self.weight_dtype: torch.dtype = model.dtype
        # torch's attention on a CPU converts bfloat16 each time it reads it, which took five times as long
        self.cache_dtype: torch.dtype = torch.float32 if self._device.type == "cpu" else model.dtype

    def bind(self, cache: KVCache) -> None:
        """See Decoder."""
        self._cache = cache

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """See Decoder."""
        with attending(SdpaAttention(batch, self._cache, self._device)):
            output = self._model(
                input_ids=self._on_device(batch.input_ids)[None],
                position_ids=self._on_device(batch.positions())[None],
                use_cache=False,
                logits_to_keep=self._on_device(batch.ends),
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _on_device(self, numbers: Numbers) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device, torch.long)
