"""Embeddings of tokens, and of positions if those are learned."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait
from services.engine.families.decoder_weights import Table


def embed(
    ids: torch.Tensor, positions: torch.Tensor, vocabulary: Table, learned: Table | None, scale: float = 1.0
) -> torch.Tensor:
    """x [tokens, hidden], float32, of `ids` and `positions` [tokens]; zeros for rows that another partition has.
    `scale` is a factor of the vocabulary's rows."""
    hidden = vocabulary.rows.shape[1]
    x = torch.empty(len(ids), hidden, dtype=torch.float32, device=ids.device)
    _embed[(len(ids),)](
        x,
        ids,
        positions,
        vocabulary.rows,
        None if learned is None else learned.rows,
        SCALE=scale,
        HIDDEN=hidden,
        FIRST_ID=vocabulary.first,
        IDS=len(vocabulary.rows),
        FIRST_PLACE=0 if learned is None else learned.first,
        PLACES=0 if learned is None else len(learned.rows),
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=4,
        **early(ids.device),
    )
    return x


@triton.jit
def _embed(
    x,
    ids,
    positions,
    vocabulary,
    learned,
    SCALE: tl.constexpr,
    HIDDEN: tl.constexpr,
    FIRST_ID: tl.constexpr,
    IDS: tl.constexpr,
    FIRST_PLACE: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < HIDDEN
    row = tl.load(ids + token).to(tl.int64) - FIRST_ID
    there = inside & (row >= 0) & (row < IDS)
    numbers = tl.load(vocabulary + row * HIDDEN + column, there, 0.0).to(tl.float32) * SCALE
    if learned is not None:
        place = tl.load(positions + token).to(tl.int64) - FIRST_PLACE
        there = inside & (place >= 0) & (place < PLACES)
        numbers += tl.load(learned + place * HIDDEN + column, there, 0.0).to(tl.float32)
    tl.store(x + token.to(tl.int64) * HIDDEN + column, numbers, inside)
