"""Attention of an iteration over the KV cache, on CPU and CUDA: by torch's scaled_dot_product_attention, or written out
where that lacks something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from services.engine.backends.stock.attention import AttentionCall
from services.engine.backends.stock.masks import LayerMask
from services.engine.batch.flat_batch import FlatBatch
from services.engine.batch.kv_cache import KVCache

GROUP = 16  # requests in one padded call; those of similar length go together, so that little is padding
WRITTEN_OUT = 1 << 24  # scores that are written out at a time: 64 MiB in float32


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer turns products of queries and keys into weights.

    `scale`: their factor; None: 1 / sqrt(dim). `softcap`: then cap * tanh(score / cap). `sinks` [heads]: a score of
    each head that takes part in the softmax and has no value.
    """

    scale: float | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


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

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See AttentionBackend; `extras` were checked when the model was loaded."""
        assert call.layer is not None
        layer = self._numbers[call.layer]
        scoring = Scoring(call.scaling, call.extras.get("softcap"), call.extras.get("s_aux"))
        of_singles, spans = self._calls[self._masks[layer]]
        self._cache.write(layer, self._slots, call.key, call.value)
        output = call.empty()
        for singles in of_singles:
            output[singles.tokens] = self._attend_singles(layer, singles, call.query, scoring)
        for span in spans:
            output[span.tokens] = self._attend_span(layer, span, call, scoring)
        return output

    def _attend_singles(self, layer: int, singles: _Singles, query: torch.Tensor, scoring: Scoring) -> torch.Tensor:
        keys, values = self._cache.read(layer, singles.blocks)
        queries = query[singles.tokens].to(keys.dtype)[:, :, None]
        return sdpa(queries, keys, values, singles.mask, scoring)[:, :, 0].to(query.dtype)

    def _attend_span(self, layer: int, span: _Span, call: AttentionCall, scoring: Scoring) -> torch.Tensor:
        if span.blocks is None:
            own = (call.key, call.value)
            keys, values = (part[None, span.tokens].to(self._cache.dtype).transpose(1, 2) for part in own)
        else:
            keys, values = self._cache.read(layer, span.blocks)
        queries = call.query[None, span.tokens].to(keys.dtype).transpose(1, 2)
        return sdpa(queries, keys, values, span.mask, scoring)[0].transpose(0, 1).to(call.query.dtype)

    def _make_calls(self, mask: LayerMask) -> tuple[list[_Singles], list[_Span]]:
        """The calls that layers with this mask share."""
        batch = self._batch
        lengths = (batch.contexts + np.diff(batch.starts)).tolist()
        singles = [i for i in range(batch.num_requests) if batch.length(i) == 1]
        singles.sort(key=lengths.__getitem__)
        return (
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


def sdpa(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scoring: Scoring
) -> torch.Tensor:
    """queries [n, heads, tokens, dim], keys and values [n, kv_heads, keys, dim] -> [n, heads, tokens, dim].

    `mask` [n or 1, 1, tokens, keys]: where a key counts; None: the tokens are those of the keys, and causal.
    """
    if scoring.softcap is not None or scoring.sinks is not None:
        return _written_out(queries, keys, values, mask, scoring)
    heads, tokens = queries.shape[1:3]
    if tokens == 1:
        # query heads that share a key head take the place of query tokens, so that no key is repeated
        queries = queries.reshape(len(queries), keys.shape[1], -1, queries.shape[3])
    output = scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scoring.scale, enable_gqa=tokens > 1
    )
    return output.reshape(len(output), heads, tokens, -1)


def _written_out(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scoring: Scoring
) -> torch.Tensor:
    """What `sdpa` returns, computed a few tokens at a time, because all scores of a long prompt would not fit."""
    n, heads, tokens, _ = queries.shape
    if mask is None:
        mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device=queries.device).tril()
    rows = max(1, WRITTEN_OUT // (n * heads * keys.shape[2]))
    slices = zip(queries.float().split(rows, 2), mask.split(rows, 2), strict=True)
    keys, values = keys.float(), values.float()
    parts = [_rows(some, keys, values, shown, scoring) for some, shown in slices]
    return torch.cat(parts, 2).to(queries.dtype)


def _rows(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    """The output for some of the tokens, in float32."""
    n, heads, tokens, dim = queries.shape
    scale = dim**-0.5 if scoring.scale is None else scoring.scale
    grouped = queries.reshape(n, keys.shape[1], -1, dim)  # heads that share keys, one after the other
    scores = (grouped @ keys.transpose(2, 3)).view(n, heads, tokens, -1) * scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.masked_fill(~mask, -torch.inf)
    if scoring.sinks is not None:
        sinks = scoring.sinks.float().view(1, heads, 1, 1).expand(n, heads, tokens, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : keys.shape[2]]
    output = weights.reshape(n, keys.shape[1], -1, keys.shape[2]) @ values
    return output.view(n, heads, tokens, -1)
