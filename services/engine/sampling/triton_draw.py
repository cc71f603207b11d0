"""Draws from whole vocabularies in one launch: min_p, top_k, top_p, noise and the winner (see `truncation`, `noise`).

A program has one draw. It sorts nothing. It reads its scores, which the second-level cache keeps, again and again, and
each pass finds two bits of the score at which k tokens, or p of the weight, are reached.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.sampling import truncation
from services.engine.sampling.noise import UNIFORMS

BLOCK = 4096
LOG2_E, LOWEST, WHOLE_BITS = (
    tl.constexpr(one) for one in (truncation.LOG2_E, truncation.LOWEST, truncation.WHOLE_BITS)
)
P5, P4, P3, P2, P1 = (tl.constexpr(one) for one in truncation.POWERS[:-1])
MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds
FARTHEST = tl.constexpr(0x7F800000)  # the distance of minus infinity


def draw(
    logits: torch.Tensor,
    tops: torch.Tensor,
    limits: truncation.DeviceTruncation,
    keys: torch.Tensor,
) -> torch.Tensor:
    """The tokens [draws], int64, drawn from `logits` [draws, vocab], float32, whose maxima are `tops` [draws].

    The logits are overwritten. `keys` [draws] are those of the noise.
    """
    draws, vocab = logits.shape
    tokens = torch.empty(draws, dtype=torch.int64, device=logits.device)
    _draw[(draws,)](
        tokens,
        logits,
        tops,
        limits.temperature,
        limits.lowest,
        limits.top_k,
        limits.top_p,
        keys,
        vocab,
        UNIT=1.0 / UNIFORMS,
        BLOCK=BLOCK,
        num_warps=16,
        enable_fp_fusion=False,  # weights have the same bits in all implementations
    )
    return tokens


@triton.jit
def _block(row, begin, vocab, BLOCK: tl.constexpr):
    """A block of tokens, their scores, and how far each is below the likeliest: an integer that grows with it."""
    id = begin + tl.arange(0, BLOCK)
    score = tl.load(row + id, id < vocab, other=float("-inf"))
    return id, score, tl.abs(score).to(tl.int32, bitcast=True)


@triton.jit
def _weights(score):
    """`truncation.weights`."""
    x = tl.maximum(score, LOWEST) * LOG2_E
    shifted = x + MAGIC
    rest = x - (shifted - MAGIC)
    power = rest * P5
    power = (power + P4) * rest
    power = (power + P3) * rest
    power = (power + P2) * rest
    power = (power + P1) * rest
    two_to = (shifted.to(tl.int32, bitcast=True) << 23) + ((127 + WHOLE_BITS) << 23)
    return ((power + 1.0) * two_to.to(tl.float32, bitcast=True)).to(tl.int64)


@triton.jit
def _reached(row, vocab, farthest, goal, WEIGH: tl.constexpr, BLOCK: tl.constexpr):
    """The distance within which there are `goal` tokens, or tokens of this weight; none beyond `farthest` counts."""
    far = 0
    for step in range(16):
        shift = tl.maximum(29 - 2 * step, 0)
        one, two, three = far + (1 << shift), far + (2 << shift), far + (3 << shift)
        nearer_one = tl.zeros((BLOCK,), tl.int64)
        nearer_two = tl.zeros((BLOCK,), tl.int64)
        nearer_three = tl.zeros((BLOCK,), tl.int64)
        for begin in range(0, vocab, BLOCK):
            id, score, distance = _block(row, begin, vocab, BLOCK)
            amount = _weights(score) if WEIGH else (id < vocab).to(tl.int64)
            amount = tl.where(distance <= farthest, amount, 0)
            nearer_one += tl.where(distance < one, amount, 0)
            nearer_two += tl.where(distance < two, amount, 0)
            nearer_three += tl.where(distance < three, amount, 0)
        steps = (tl.sum(nearer_one) < goal).to(tl.int32)
        steps += (tl.sum(nearer_two) < goal).to(tl.int32)
        steps += (tl.sum(nearer_three) < goal).to(tl.int32)
        far += steps << shift
    return far


@triton.jit
def _weight(row, vocab, farthest, BLOCK: tl.constexpr):
    """The weight of the tokens within this distance."""
    weight = tl.zeros((BLOCK,), tl.int64)
    for begin in range(0, vocab, BLOCK):
        _, score, distance = _block(row, begin, vocab, BLOCK)
        weight += tl.where(distance <= farthest, _weights(score), 0)
    return tl.sum(weight)


@triton.jit
def _noise(key, id, UNIT: tl.constexpr):
    """`noise.gumbel` from the same bits."""
    state = key.to(tl.uint64, bitcast=True) + (id + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    state = state ^ (state >> 31)
    u = (state >> 11).to(tl.float32) * UNIT
    # -log(1 - u): a large value of noise comes from a small u, whose digits 1 - u would lose
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6 + u * (1 / 7)))))))
    exponential = tl.where(u < 0.125, series, -tl.log(1.0 - u))
    return -tl.log(tl.minimum(tl.maximum(exponential, 5.5511151231257827e-17), 64.0))


@triton.jit
def _draw(
    tokens,
    logits,
    tops,
    temperatures,
    lowest,
    top_ks,
    top_ps,
    keys,
    vocab,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    mine = tl.program_id(0).to(tl.int64)
    row = logits + mine * vocab
    top, temperature, key = tl.load(tops + mine), tl.load(temperatures + mine), tl.load(keys + mine)
    for begin in range(0, vocab, BLOCK):
        id = begin + tl.arange(0, BLOCK)
        logit = tl.load(row + id, id < vocab)
        tl.store(row + id, tl.div_rn(logit - top, temperature), id < vocab)
    tl.debug_barrier()  # another thread may read a score than the one that wrote it
    farthest = tl.abs(tl.load(lowest + mine)).to(tl.int32, bitcast=True)
    top_k = tl.load(top_ks + mine)
    if top_k > 0:
        kth = _reached(row, vocab, FARTHEST, top_k, False, BLOCK)
        farthest = tl.minimum(farthest, kth)
    top_p = tl.load(top_ps + mine)
    if top_p < 1.0:
        whole = _weight(row, vocab, farthest, BLOCK)
        goal = (top_p * whole.to(tl.float64)).to(tl.int64)
        nucleus = _reached(row, vocab, farthest, goal, True, BLOCK)
        farthest = tl.minimum(farthest, nucleus)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    winner = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, vocab, BLOCK):
        id, score, distance = _block(row, begin, vocab, BLOCK)
        noisy = tl.where(distance <= farthest, score + _noise(key, id, UNIT), float("-inf"))
        winner = tl.where(noisy > best, id, winner)
        best = tl.maximum(best, noisy)
    # the lowest id if two are equal; id 0 if all are NaN
    won = tl.min(tl.where(best == tl.max(best), winner, vocab - 1))
    tl.store(tokens + mine, won.to(tl.int64))
