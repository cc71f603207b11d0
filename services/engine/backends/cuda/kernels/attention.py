"""Attention of a whole iteration in one launch over the block table: initiations, increments and chunks.

The queries of a KV head are rows: those of a token's heads are neighbours, one token follows another, and tiles cut
them. The positions of a request are cut every SPLIT positions. Each split is computed by itself (online softmax,
Milakov and Gimelshein, 2018), and splits are merged one by one in their order. They are merged by the program that
computed them or by the last one of several to finish. Both use the same function, so a row's bits are the same either
way. The weights of a softmax are summed as integers, in whatever order threads have them, and matrix products in the
order of their inputs, so that the number of rows of a tile changes no bits either."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, stages, wait
from services.engine.backends.cuda.plan import FIELDS, Tiles
from services.engine.batch.kv_cache import scale_numbers
from services.engine.spec import AttentionSpec

LOG2_E = 1.4426950408889634
WARP = 32  # threads
REGISTERS, MOST_REGISTERS = 65_536, 255  # of a multiprocessor, of a thread


@dataclass(frozen=True, slots=True)
class Partials:
    """Memory in which the splits of a tile are merged: sums [rows, kv_heads, dim], their weights and maxima [rows,
    kv_heads, 2], in float32; how many of a tile's splits are done [rows, kv_heads]; and how many items and programs
    are [2]. What counts is zero between launches."""

    sums: torch.Tensor
    weights: torch.Tensor
    arrived: torch.Tensor
    taken: torch.Tensor

    @classmethod
    def make(cls, rows: int, kv_heads: int, dim: int, device: torch.device) -> Partials:
        return cls(
            torch.zeros(rows, kv_heads, dim, device=device),
            torch.zeros(rows, kv_heads, 2, device=device),
            torch.zeros(rows, kv_heads, dtype=torch.int32, device=device),
            torch.zeros(2, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class Work:
    """A plan on the device, int32: `count` [1], `items` [at least count, FIELDS], `tables` as in FlatBatch."""

    count: torch.Tensor
    items: torch.Tensor
    tables: torch.Tensor


def attend(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    work: Work,
    partials: Partials,
    spec: AttentionSpec,
    tiles: Tiles,
    multiprocessors: int,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[tokens, heads * dim] of qkv [tokens, at least heads * dim], which begins with queries, and whose keys and values
    are in the cache already. `sinks` [heads], float32. Rows that `work` does not name are undefined."""
    heads, kv_heads, block_size = spec.heads, keys.shape[1], keys.shape[3]
    short = scale_numbers(keys.dtype)  # of a key or value of eight bits
    dim = keys.shape[2] - short
    piece = (dim + short) * block_size  # numbers of a block's keys of a head
    out = torch.empty(len(qkv), heads * dim, dtype=qkv.dtype, device=qkv.device)
    registers = REGISTERS // (tiles.resident * tiles.warps * WARP)
    _attend[(tiles.resident * multiprocessors,)](
        out,
        qkv,
        keys,
        values,
        keys.view(-1).view(torch.float32) if short else None,
        values.view(-1).view(torch.float32) if short else None,
        work.count,
        work.items,
        work.tables,
        sinks,
        partials.sums,
        partials.weights,
        partials.arrived,
        partials.taken,
        SCALE=2.0 * spec.scaling * LOG2_E / spec.soft_cap if spec.soft_cap else spec.scaling * LOG2_E,
        CAP=spec.soft_cap * LOG2_E,
        WINDOW=spec.window,
        WIDTH=qkv.shape[1],
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        DIM_BLOCK=max(16, triton.next_power_of_2(dim)),
        BLOCK_SIZE=block_size,
        PIECE=piece,
        RUN=math.gcd(block_size, tiles.keys),
        ROWS=tiles.rows,
        KEYS=tiles.keys,
        SPLIT=tiles.split,
        FIELDS=FIELDS,
        LOG2_E=LOG2_E,
        num_warps=tiles.warps,
        num_stages=stages(tiles.stages, qkv.device),
        maxnreg=registers if registers < MOST_REGISTERS else None,
        **early(qkv.device),
    )
    return out


@triton.jit
def _merge(sums, weight, top, more_sums, more_weight, more_top):
    """Merge two parts of a softmax, the second after the first. An empty part is 0, 0, -inf."""
    highest = tl.maximum(top, more_top)
    finite = tl.where(highest == float("-inf"), 0.0, highest)
    scale, more_scale = tl.exp2(top - finite), tl.exp2(more_top - finite)
    # explicit fma: which of two products is fused into the sum is not the compiler's choice
    weight = tl.fma(more_weight, more_scale, weight * scale)
    sums = tl.fma(more_sums, tl.broadcast_to(more_scale[:, None], sums.shape), sums * scale[:, None])
    return sums, weight, highest


@triton.jit
def _sum_of(shares):
    """The sums of rows of numbers from 0 to 1, as integers of 2**-22, so that no order of additions changes a bit."""
    # between 2 and 4 a float32 is a multiple of 2**-22, and its bits are consecutive integers
    counts = (shares + 2.0).to(tl.int32, bitcast=True) - 0x40000000
    return tl.sum(counts, 1).to(tl.float32) * 2.384185791015625e-07


@triton.jit
def _split(
    query,
    position,
    keys,
    values,
    key_scales,
    value_scales,
    table,
    first,
    end,
    head,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PIECE: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Sums, weight and maximum of each row over the positions from `first` to `end`."""
    sums = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    column = tl.arange(0, DIM_BLOCK)
    inside = column < DIM
    for begin in range(first, end, KEYS):
        at = begin + tl.arange(0, KEYS)
        # past the end the last block is read again, because a mask across neighbouring keys would split their load
        block = tl.load(table + tl.minimum(at // BLOCK_SIZE, (end - 1) // BLOCK_SIZE)).to(tl.int64)
        block = tl.max_constancy(block * KV_HEADS + head, RUN)  # so that the compiler loads RUN numbers at once
        offset = at % BLOCK_SIZE
        key_at = keys + (block * PIECE + offset)[None, :] + column[:, None] * BLOCK_SIZE
        key = tl.load(key_at, inside[:, None], 0)
        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * SCALE
        scales_at = block * (PIECE // 4) + DIM * BLOCK_SIZE // 4 + offset
        if key_scales is not None:
            scores *= tl.load(key_scales + scales_at)[None, :]
        if CAP > 0:
            scores = CAP * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))  # tanh(z) = 1 - 2 / (exp(2 z) + 1)
        seen = at[None, :] <= position[:, None]
        if WINDOW:
            seen &= at[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        shares = tl.exp2(scores - finite[:, None])
        scale = tl.exp2(top - finite)
        weight = tl.fma(weight, scale, _sum_of(shares))
        value_at = values + (block * PIECE + offset * DIM)[:, None] + column[None, :]
        value = tl.load(value_at, (at < end)[:, None] & inside[None, :], 0).to(query.dtype)
        if value_scales is not None:
            shares *= tl.load(value_scales + scales_at, at < end, 0.0)[None, :]
        sums = tl.dot(shares.to(value.dtype), value, sums * scale[:, None], input_precision="ieee")
        top = highest
    return sums, weight, top


@triton.jit
def _attend(
    out,
    qkv,
    keys,
    values,
    key_scales,
    value_scales,
    count,
    items,
    tables,
    sinks,
    partial_sums,
    partial_weights,
    arrived,
    taken,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PIECE: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    FIELDS: tl.constexpr,
    LOG2_E: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    column = tl.arange(0, DIM_BLOCK)[None, :]
    programs = tl.num_programs(0)
    end_work = tl.load(count) * KV_HEADS
    work = tl.program_id(0)
    while work < end_work:
        item = items + work // KV_HEADS * FIELDS
        head = work % KV_HEADS
        start, rows, context, table = tl.load(item), tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
        first_row, first_split = tl.load(item + 4), tl.load(item + 5)
        end_split, partial = tl.load(item + 6), tl.load(item + 7)

        height = tl.minimum(ROWS, rows - first_row)
        line = tl.arange(0, ROWS)
        row = tl.minimum(first_row + line, rows - 1)
        there = (line < height)[:, None] & (column < DIM)
        position = context + row // GROUP
        token = (start + row // GROUP).to(tl.int64)[:, None]
        query_head = (head * GROUP + row % GROUP)[:, None]
        query = tl.load(qkv + token * WIDTH + query_head * DIM + column, there, 0.0)
        end = context + (first_row + height - 1) // GROUP + 1
        before = 0  # splits before the window
        if WINDOW:  # begins in this tile of keys
            begin = tl.maximum(context + first_row // GROUP + 1 - WINDOW, 0) // KEYS
            before = begin // (SPLIT // KEYS)

        sums = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
        weight = tl.zeros((ROWS,), tl.float32)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        if sinks is not None:  # a sink is a part before the first split, with a weight and no value
            sink = tl.load(sinks + head * GROUP + row % GROUP) * LOG2_E
            weight, top = tl.where(partial < 0, 1.0, weight), tl.where(partial < 0, sink, top)
        for split in range(first_split, end_split):
            first = split * SPLIT
            if WINDOW:  # a product, so that the compiler knows that it is a multiple
                first = tl.maximum(split * (SPLIT // KEYS), begin) * KEYS
            more_sums, more_weight, more_top = _split(
                query,
                position,
                keys,
                values,
                key_scales,
                value_scales,
                tables + table,
                first,
                tl.minimum((split + 1) * SPLIT, end),
                head,
                SCALE,
                CAP,
                WINDOW,
                KV_HEADS,
                DIM,
                DIM_BLOCK,
                BLOCK_SIZE,
                PIECE,
                RUN,
                ROWS,
                KEYS,
            )
            sums, weight, top = _merge(sums, weight, top, more_sums, more_weight, more_top)

        finished = partial < 0
        if partial >= 0:
            splits = tl.cdiv(end, SPLIT) - before
            place = (partial + (first_split - before) * height + line).to(tl.int64) * KV_HEADS + head
            tl.store(partial_sums + place[:, None] * DIM + column, sums, there)
            tl.store(partial_weights + place * 2, weight, line < height)
            tl.store(partial_weights + place * 2 + 1, top, line < height)
            tl.debug_barrier()  # all threads' stores come before one thread's count
            counter = arrived + partial * KV_HEADS + head
            finished = tl.atomic_add(counter, 1, sem="acq_rel") == splits - 1
            if finished:
                tl.store(counter, 0)
                sums = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
                weight = tl.zeros((ROWS,), tl.float32)
                top = tl.full((ROWS,), float("-inf"), tl.float32)
                if sinks is not None:
                    weight, top = weight + 1.0, sink
                for split in range(splits):
                    place = (partial + split * height + line).to(tl.int64) * KV_HEADS + head
                    # bypass the first-level cache, which may hold older values
                    found = partial_weights + place * 2
                    more_sums = tl.load(partial_sums + place[:, None] * DIM + column, there, 0.0, cache_modifier=".cg")
                    more_weight = tl.load(found, line < height, 0.0, cache_modifier=".cg")
                    more_top = tl.load(found + 1, line < height, float("-inf"), cache_modifier=".cg")
                    sums, weight, top = _merge(sums, weight, top, more_sums, more_weight, more_top)
        if finished:
            to = out + token * (HEADS * DIM) + query_head * DIM + column
            tl.store(to, (sums / weight[:, None]).to(out.dtype.element_ty), there)
        work = end_work
        if programs < end_work:  # so that no program has much left when others have none
            work = programs + tl.atomic_add(taken, 1)
    if programs < end_work:  # noqa: SIM102, as `and` computes both sides
        if tl.atomic_add(taken + 1, 1, sem="acq_rel") == programs - 1:
            tl.store(taken, 0)
            tl.store(taken + 1, 0)
