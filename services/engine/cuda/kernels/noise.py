"""Gumbel noise for whole vocabularies in one pass (see `services.engine.noise`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.noise import UNIFORMS

BLOCK = 1024


def add_gumbel(scores: torch.Tensor, keys: torch.Tensor) -> None:
    """Add to scores [draws, vocab], float32, the noise of keys [draws], int64: of the same bits as `noise.gumbel`."""
    draws, vocab = scores.shape
    grid = (draws, triton.cdiv(vocab, BLOCK))
    _add_gumbel[grid](scores, keys, vocab, UNIT=1.0 / UNIFORMS, BLOCK=BLOCK, num_warps=4)


@triton.jit(do_not_specialize_on_alignment=["keys"])  # those of a part of the draws may begin anywhere
def _add_gumbel(scores, keys, vocab, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    draw = tl.program_id(0).to(tl.int64)
    id = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = id < vocab
    # SplitMix64, as in `noise.bits`
    state = tl.load(keys + draw).to(tl.uint64, bitcast=True) + (id + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    state = state ^ (state >> 31)
    u = (state >> 11).to(tl.float32) * UNIT
    # -log(1 - u): a large value of noise comes from a small u, whose digits 1 - u would lose
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6 + u * (1 / 7)))))))
    exponential = tl.where(u < 0.125, series, -tl.log(1.0 - u))
    exponential = tl.minimum(tl.maximum(exponential, 5.5511151231257827e-17), 64.0)
    at = scores + draw * vocab + id
    tl.store(at, tl.load(at, inside) - tl.log(exponential), inside)
