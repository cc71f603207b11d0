"""Attention of some queries over some keys: torch's scaled_dot_product_attention, or written out where that lacks
something."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

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


def attend(
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
    """The same, a few tokens at a time, because all scores of a long prompt would not fit."""
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
    """The same in float32, with a mask."""
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
