"""Embeddings of tokens, and of positions where those are learned."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def embed(
    ids: torch.Tensor, positions: torch.Tensor, vocabulary: torch.Tensor, learned: torch.Tensor | None
) -> torch.Tensor:
    """x [tokens, hidden], float32, of `ids` and `positions` [tokens]; tables [rows, hidden]."""
    hidden = vocabulary.shape[1]
    x = torch.empty(len(ids), hidden, dtype=torch.float32, device=ids.device)
    _embed[(len(ids),)](
        x, ids, positions, vocabulary, learned, HIDDEN=hidden, BLOCK=triton.next_power_of_2(hidden), num_warps=4
    )
    return x


@triton.jit
def _embed(x, ids, positions, vocabulary, learned, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < HIDDEN
    row = tl.load(ids + token).to(tl.int64)
    numbers = tl.load(vocabulary + row * HIDDEN + column, inside).to(tl.float32)
    if learned is not None:
        place = tl.load(positions + token).to(tl.int64)
        numbers += tl.load(learned + place * HIDDEN + column, inside).to(tl.float32)
    tl.store(x + token.to(tl.int64) * HIDDEN + column, numbers, inside)
