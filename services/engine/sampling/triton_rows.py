"""Whole rows of logits on CUDA: the largest logit of each chunk and of each row, and sums of weights.

Each function reads the logits once. Several programs share a row, so that few rows keep the device busy, too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.sampling import truncation
from services.engine.sampling.whole_rows import CHUNK

CHUNKS_AT_ONCE = 64  # of a program of `maxima`
WIDTH = 1024  # the columns of a program's tile of tokens
DEPTH = tl.constexpr(2)  # its rows, which a thread adds up
PART = 8192  # tokens of a program of `weigh`
LOG2_E, LOWEST, WHOLE_BITS = (
    tl.constexpr(one) for one in (truncation.LOG2_E, truncation.LOWEST, truncation.WHOLE_BITS)
)
P5, P4, P3, P2, P1 = (tl.constexpr(one) for one in truncation.POWERS[:-1])
MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds


def maxima(logits: torch.Tensor) -> torch.Tensor:
    """The largest number of each chunk [rows, chunks] of `logits` [rows, vocab], float32; infinity where a chunk has
    NaN."""
    rows, vocab = logits.shape
    found = torch.empty(rows, -(-vocab // CHUNK), device=logits.device)
    chunks = found.shape[1]
    if rows:
        grid = rows, -(-chunks // CHUNKS_AT_ONCE)
        _maxima[grid](found, logits, vocab, chunks, CHUNK=CHUNK, AT_ONCE=CHUNKS_AT_ONCE, num_warps=4)
    return found


def best(logits: torch.Tensor, maxima: torch.Tensor, tokens: torch.Tensor, tops: torch.Tensor) -> None:
    """Write the largest of `logits` [rows, vocab], whose chunks have these `maxima`, into `tops` [rows], float32, and
    its token, of equal ones the lowest, into `tokens` [rows], int64."""
    rows, vocab = logits.shape
    chunks = maxima.shape[1]
    most = triton.next_power_of_2(chunks)
    if rows:
        _best[(rows,)](tokens, tops, logits, maxima, vocab, chunks, CHUNK=CHUNK, CHUNKS=most, num_warps=4)


def weigh(logits: torch.Tensor, tops: torch.Tensor) -> torch.Tensor:
    """The sum of the weights [rows], int64, of logits [rows, vocab], whose maxima are `tops` [rows]; see
    `truncation.weights`."""
    rows, vocab = logits.shape
    parts = torch.empty(rows, -(-vocab // PART), dtype=torch.int64, device=logits.device)
    if rows:
        # weights have the same bits in all implementations
        _weigh[parts.shape](parts, logits, tops, vocab, PART=PART, WIDTH=WIDTH, num_warps=8, enable_fp_fusion=False)
    return parts.sum(dim=1)


@triton.jit
def weights(score):
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
def tile(WIDTH: tl.constexpr):
    """The places of a tile's tokens, of which each thread has whole columns."""
    return tl.arange(0, DEPTH)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def _maxima(found, logits, vocab, chunks, CHUNK: tl.constexpr, AT_ONCE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    id = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    logit = tl.load(logits + row * vocab + id, id < vocab, other=float("-inf"))
    logit = tl.where(logit == logit, logit, float("inf"))
    tl.store(found + row * chunks + chunk, tl.max(logit, 1), chunk < chunks)


@triton.jit(do_not_specialize_on_alignment=["tokens", "tops", "maxima"])
def _best(tokens, tops, logits, maxima, vocab, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    most = tl.load(maxima + row * chunks + chunk, chunk < chunks, other=float("-inf"))
    top = tl.max(most)
    id = tl.min(tl.where(most == top, chunk, chunks - 1)) * CHUNK + tl.arange(0, CHUNK)
    logit = tl.load(logits + row * vocab + id, id < vocab, other=float("-inf"))
    token = tl.min(tl.where((logit == top) | (logit != logit), id, vocab - 1))
    tl.store(tops + row, top)
    tl.store(tokens + row, token.to(tl.int64))


@triton.jit
def _weigh(parts, logits, tops, vocab, PART: tl.constexpr, WIDTH: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = tl.load(tops + row)
    weight = tl.zeros((WIDTH,), tl.int64)
    for begin in range(part * PART, tl.minimum((part + 1) * PART, vocab), DEPTH * WIDTH):
        id = begin + tile(WIDTH)
        logit = tl.load(logits + row * vocab + id, id < vocab, other=float("-inf"))
        weight += tl.sum(weights(logit - top), 0)
    tl.store(parts + row * tl.num_programs(1) + part, tl.sum(weight))
