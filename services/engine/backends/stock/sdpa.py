"""Attention by torch's scaled_dot_product_attention, on CPU and CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from services.engine.batch.flat_batch import FlatBatch
from services.engine.batch.kv_cache import KVCache

GROUP = 16  # requests in one padded call; those of similar length go together, so that little is padding


@dataclass(frozen=True, slots=True)
class _Singles:
    """Requests with one token in this iteration: one padded call for all of them."""

    tokens: torch.Tensor  # [requests], flat indices
    blocks: torch.Tensor  # [requests, blocks], padded with the cache's padding block
    mask: torch.Tensor  # [requests, 1, 1, blocks * block_size], true where a key counts


@dataclass(frozen=True, slots=True)
class _Span:
    """A request with several tokens in this iteration: a call of its own."""

    tokens: slice
    blocks: torch.Tensor | None  # [1, blocks]; None: nothing was computed before, so no keys are read from the cache
    mask: torch.Tensor | None  # [tokens, blocks * block_size]; None: causal


class SdpaAttention:
    """Attention of one iteration. Indices and masks are made once and used by all layers."""

    def __init__(self, batch: FlatBatch, cache: KVCache, device: torch.device) -> None:
        self._cache = cache
        self._device = device
        self._slots = torch.from_numpy(batch.slots()).to(device, torch.long)
        lengths = (batch.contexts + np.diff(batch.starts)).tolist()
        singles = [i for i in range(batch.num_requests) if batch.length(i) == 1]
        singles.sort(key=lengths.__getitem__)
        self._singles = [self._pad(batch, lengths, singles[i : i + GROUP]) for i in range(0, len(singles), GROUP)]
        self._spans = [self._span(batch, i) for i in range(batch.num_requests) if batch.length(i) > 1]

    def attend(
        self,
        layer: int | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        """See AttentionBackend; `extras` were checked when the model was loaded."""
        assert layer is not None
        self._cache.write(layer, self._slots, key, value)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for singles in self._singles:
            output[singles.tokens] = self._attend_singles(layer, singles, query, scaling)
        for span in self._spans:
            output[span.tokens] = self._attend_span(layer, span, query, key, value, scaling)
        return output

    def _attend_singles(
        self, layer: int, singles: _Singles, query: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        keys, values = self._cache.read(layer, singles.blocks)
        # query heads that share a key head take the place of query tokens, so that no key is repeated
        grouped = query[singles.tokens].to(keys.dtype).unflatten(1, (keys.shape[1], -1))
        output = scaled_dot_product_attention(grouped, keys, values, attn_mask=singles.mask, scale=scaling)
        return output.flatten(1, 2).to(query.dtype)

    def _attend_span(
        self,
        layer: int,
        span: _Span,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        if span.blocks is None:
            keys, values = (part[None, span.tokens].to(self._cache.dtype).transpose(1, 2) for part in (key, value))
        else:
            keys, values = self._cache.read(layer, span.blocks)
        queries = query[span.tokens].to(keys.dtype).transpose(0, 1)
        output = scaled_dot_product_attention(
            queries[None],
            keys,
            values,
            attn_mask=span.mask,
            is_causal=span.mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        return output[0].transpose(0, 1).to(query.dtype)

    def _pad(self, batch: FlatBatch, lengths: list[int], requests: list[int]) -> _Singles:
        tables = [batch.table(i) for i in requests]
        most = max(map(len, tables))
        blocks = [table + [self._cache.padding_block] * (most - len(table)) for table in tables]
        keys = torch.arange(most * self._cache.block_size, device=self._device)
        mask = keys < torch.tensor([lengths[i] for i in requests], device=self._device)[:, None]
        return _Singles(
            tokens=torch.tensor([int(batch.starts[i]) for i in requests], device=self._device),
            blocks=torch.tensor(blocks, device=self._device),
            mask=mask[:, None, None, :],
        )

    def _span(self, batch: FlatBatch, i: int) -> _Span:
        tokens = slice(int(batch.starts[i]), int(batch.starts[i + 1]))
        if batch.contexts[i] == 0:
            return _Span(tokens, None, None)
        blocks = torch.tensor([batch.table(i)], device=self._device)
        keys = torch.arange(blocks.numel() * self._cache.block_size, device=self._device)
        positions = torch.arange(int(batch.contexts[i]), int(batch.contexts[i]) + batch.length(i), device=self._device)
        return _Span(tokens, blocks, keys <= positions[:, None])
