"""Adapters (LoRA): what is added to the products of some rows, b (a x). Rows of one adapter are neighbours in a batch.

All of it is float32, without tensor cores. A row's sums run over parts of the inputs, then over the parts, then over
the ranks, each in one order, and parts do not depend on the batch. So a row's bits depend on the row and its adapter
alone. The host learns of nothing, so a graph can have all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait

ROWS, RANKS, COLUMNS, DEPTH = 16, 16, 128, 64  # of a tile
PART = 512  # inputs, which one program multiplies: with few rows, all programs together must fill the device
RESIDENT = 4  # programs of a multiprocessor
ITEM = 3  # numbers of an item of work: first row, end, and where its adapter's table is
PRODUCT = 3  # numbers of a product in that table: where `a` and `b` are, and the rank, a multiple of RANKS


@dataclass(frozen=True, slots=True)
class Adapted:
    """The rows of a batch that have adapters, from the first one to the last: tiles of at most ROWS rows of one."""

    count: torch.Tensor  # [1], int32: tiles
    items: torch.Tensor  # [room, ITEM], int64
    plain: int  # rows before the first one, as far as the host knows


@dataclass(frozen=True, slots=True)
class Added:
    """What adapters add to the sums of a product."""

    numbers: torch.Tensor  # [rows, outputs], float32; of plain rows anything
    first: torch.Tensor  # [1], int64: the first row that has an adapter
    plain: int  # see Adapted


def add_low_rank(
    x: torch.Tensor, adapted: Adapted, product: int, width: int, outputs: int, multiprocessors: int
) -> Added:
    """What adapters add to this product of x [rows, inputs]. `product`: its place in the tables; `width`: the highest
    rank that it may have."""
    rows, inputs = x.shape
    room, parts = len(adapted.items), triton.cdiv(inputs, PART)
    low = torch.empty(parts, rows, width, device=x.device)
    out = torch.empty(rows, outputs, device=x.device)
    most = RESIDENT * multiprocessors
    _shrink[(min(room * parts, most),)](
        low,
        x,
        adapted.count,
        adapted.items,
        product * PRODUCT,
        rows,
        inputs,
        PARTS=parts,
        WIDTH=width,
        PART=PART,
        DEPTH=DEPTH,
        ROWS=ROWS,
        RANKS=RANKS,
        ITEM=ITEM,
        num_warps=4,
        **early(x.device),
    )
    _expand[(min(room * triton.cdiv(outputs, COLUMNS), most),)](
        out,
        low,
        adapted.count,
        adapted.items,
        product * PRODUCT,
        rows,
        outputs,
        PARTS=parts,
        WIDTH=width,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        RANKS=RANKS,
        ITEM=ITEM,
        num_warps=4,
        **early(x.device),
    )
    return Added(out, adapted.items.view(-1)[:1], adapted.plain)


@triton.jit
def _numbers(address):
    """The float32s there, which begin at a multiple of 16 bytes."""
    return tl.multiple_of(tl.load(address).to(tl.pointer_type(tl.float32)), 16)


@triton.jit(do_not_specialize=["product", "rows"])
def _shrink(
    low,
    x,
    count,
    items,
    product,
    rows,
    inputs,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    ITEM: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    for work in range(tl.program_id(0), tl.load(count) * PARTS, tl.num_programs(0)):
        item, part = items + work // PARTS * ITEM, work % PARTS
        row = tl.load(item) + tl.arange(0, ROWS)
        there = row < tl.load(item + 1)
        table = tl.load(item + 2).to(tl.pointer_type(tl.int64)) + product
        a, rank = _numbers(table), tl.load(table + 2).to(tl.int32)
        for first in range(0, rank, RANKS):
            own = first + tl.arange(0, RANKS)
            total = tl.zeros((ROWS, RANKS), tl.float32)
            for begin in range(part * PART, tl.minimum(part * PART + PART, inputs), DEPTH):
                depth = begin + tl.arange(0, DEPTH)
                inside = depth < inputs
                left = tl.load(x + row[:, None] * inputs + depth[None, :], there[:, None] & inside[None, :], 0.0)
                right = tl.load(a + own[None, :] * inputs + depth[:, None], inside[:, None], 0.0)
                total = tl.dot(left.to(tl.float32), right, total, input_precision="ieee")
            to = low + (row + part * rows)[:, None] * WIDTH + own[None, :]
            tl.store(to, total, there[:, None])


@triton.jit(do_not_specialize=["product", "rows"])
def _expand(
    out,
    low,
    count,
    items,
    product,
    rows,
    outputs,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANKS: tl.constexpr,
    ITEM: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    across = tl.cdiv(outputs, COLUMNS)
    for work in range(tl.program_id(0), tl.load(count) * across, tl.num_programs(0)):
        item, column = items + work // across * ITEM, work % across * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < outputs
        row = tl.load(item) + tl.arange(0, ROWS)
        there = row < tl.load(item + 1)
        table = tl.load(item + 2).to(tl.pointer_type(tl.int64)) + product
        b, rank = _numbers(table + 1), tl.load(table + 2).to(tl.int32)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, rank, RANKS):
            own = first + tl.arange(0, RANKS)
            sums = tl.zeros((ROWS, RANKS), tl.float32)
            for part in range(PARTS):
                sums += tl.load(low + (row + part * rows)[:, None] * WIDTH + own[None, :], there[:, None], 0.0)
            right = tl.load(b + own[:, None] * outputs + column[None, :], inside[None, :], 0.0)
            total = tl.dot(sums, right, total, input_precision="ieee")
        tl.store(out + row[:, None] * outputs + column[None, :], total, there[:, None] & inside[None, :])
