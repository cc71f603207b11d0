"""Attention of an iteration over the KV cache, on CPU and CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from services.engine.backends.stock.masks import LayerMask
from services.engine.backends.stock.scores import Scoring, attend
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
    mask: torch.Tensor | None  # [1, 1, tokens, keys]; None: causal


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of the layers that have the same mask."""

    singles: list[_Singles]
    spans: list[_Span]


class SdpaAttention:
    """Attention of one iteration. Indices and masks are made once for all layers with the same mask."""

    def __init__(
        self,
        batch: FlatBatch,
        cache: KVCache,
        device: torch.device,
        masks: Sequence[LayerMask],
        numbers: Mapping[int, int],
    ) -> None:
        """`masks`: of each layer of the cache. `numbers`: which of them a layer of the model is."""
        self._batch = batch
        self._cache = cache
        self._device = device
        self._masks = masks
        self._numbers = numbers
        self._slots = torch.from_numpy(batch.slots()).to(device, torch.long)
        self._calls = {mask: self._make_calls(mask) for mask in dict.fromkeys(masks)}

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
        layer = self._numbers[layer]
        scoring = Scoring(scaling, extras.get("softcap"), extras.get("s_aux"))
        calls = self._calls[self._masks[layer]]
        self._cache.write(layer, self._slots, key, value)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for singles in calls.singles:
            output[singles.tokens] = self._attend_singles(layer, singles, query, scoring)
        for span in calls.spans:
            output[span.tokens] = self._attend_span(layer, span, query, key, value, scoring)
        return output

    def _attend_singles(self, layer: int, singles: _Singles, query: torch.Tensor, scoring: Scoring) -> torch.Tensor:
        keys, values = self._cache.read(layer, singles.blocks)
        queries = query[singles.tokens].to(keys.dtype)[:, :, None]
        return attend(queries, keys, values, singles.mask, scoring)[:, :, 0].to(query.dtype)

    def _attend_span(
        self, layer: int, span: _Span, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        if span.blocks is None:
            keys, values = (part[None, span.tokens].to(self._cache.dtype).transpose(1, 2) for part in (key, value))
        else:
            keys, values = self._cache.read(layer, span.blocks)
        queries = query[None, span.tokens].to(keys.dtype).transpose(1, 2)
        return attend(queries, keys, values, span.mask, scoring)[0].transpose(0, 1).to(query.dtype)

    def _make_calls(self, mask: LayerMask) -> _Calls:
        batch = self._batch
        lengths = (batch.contexts + np.diff(batch.starts)).tolist()
        singles = [i for i in range(batch.num_requests) if batch.length(i) == 1]
        singles.sort(key=lengths.__getitem__)
        return _Calls(
            [self._pad(mask, lengths, singles[i : i + GROUP]) for i in range(0, len(singles), GROUP)],
            [self._span(mask, i) for i in range(batch.num_requests) if batch.length(i) > 1],
        )

    def _pad(self, mask: LayerMask, lengths: list[int], requests: list[int]) -> _Singles:
        """Reads the blocks from the first one that a request attends to."""
        size = self._cache.block_size
        last = [lengths[i] - 1 for i in requests]
        skipped = [max(0, mask.first(position)) // size for position in last]
        tables = [self._batch.table(i)[skip:] for i, skip in zip(requests, skipped, strict=True)]
        most = max(map(len, tables))
        blocks = [table + [self._cache.padding_block] * (most - len(table)) for table in tables]
        keys = torch.tensor(skipped, device=self._device)[:, None] * size
        keys = keys + torch.arange(most * size, device=self._device)
        return _Singles(
            tokens=torch.tensor([int(self._batch.starts[i]) for i in requests], device=self._device),
            blocks=torch.tensor(blocks, device=self._device),
            mask=mask.shows(torch.tensor(last, device=self._device)[:, None], keys)[:, None],
        )

    def _span(self, mask: LayerMask, i: int) -> _Span:
        begin, count = int(self._batch.contexts[i]), self._batch.length(i)
        tokens = slice(int(self._batch.starts[i]), int(self._batch.starts[i + 1]))
        positions = torch.arange(begin, begin + count, device=self._device)
        if begin == 0:
            whole = mask.first(count - 1) <= 0
            return _Span(tokens, None, None if whole else mask.shows(positions, positions)[None, None])
        size = self._cache.block_size
        skipped = max(0, mask.first(begin)) // size
        blocks = torch.tensor([self._batch.table(i)[skipped:]], device=self._device)
        keys = skipped * size + torch.arange(blocks.numel() * size, device=self._device)
        return _Span(tokens, blocks, mask.shows(positions, keys)[None, None])
