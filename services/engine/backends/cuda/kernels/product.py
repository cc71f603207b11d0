"""Products whose tile follows the number of rows.

An output is one float32 sum over the inputs in ascending order, to which what an adapter adds and the bias are added,
and which is then rounded once. No tile regroups that sum, so a row's bits depend neither on the tile nor on the rows
beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.coded import CodedLinear
from services.engine.backends.cuda.kernels.codes import sum_of_codes
from services.engine.backends.cuda.kernels.experts import Routes
from services.engine.backends.cuda.kernels.launch import early, stages, wait
from services.engine.backends.cuda.kernels.low_rank import Added
from services.engine.families.decoder_weights import Linear

GROUP = 8  # tiles of rows that run together, so that they find the weights in the second-level cache


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program computes at once. `swapped`: the weights are the tensor core's left operand, which has at least 64
    rows; so few rows of x waste nothing."""

    rows: int  # of x
    outputs: int
    depth: int  # inputs read at once; of codes, their layout says how many
    warps: int
    stages: int  # steps of `depth` in flight
    swapped: bool = False


ANCHOR = Tile(rows=64, outputs=64, depth=64, warps=4, stages=4)  # whose bits are those of every other way
PLAIN = Tile(rows=32, outputs=64, depth=32, warps=4, stages=2)  # float32, which has no tensor cores: any number of rows

# For 16-bit numbers: the most rows of x that a tile is for, the most outputs of a product that it is for (0: any), and
# the tile. The first that fits is taken. Few rows need many bytes in flight, many rows need large tiles; a product of
# few outputs needs small tiles, or most multiprocessors would idle. From 64 rows on, the library is faster where it can
# be asked (see `Products`).
MANY = 1 << 30
TILES = (
    (16, 16384, Tile(rows=16, outputs=64, depth=128, warps=4, stages=8, swapped=True)),
    (16, 0, Tile(rows=16, outputs=128, depth=128, warps=4, stages=4, swapped=True)),
    (32, 16384, Tile(rows=32, outputs=64, depth=128, warps=4, stages=8, swapped=True)),
    (32, 0, Tile(rows=32, outputs=128, depth=128, warps=8, stages=4, swapped=True)),
    (64, 16384, Tile(rows=64, outputs=32, depth=128, warps=4, stages=6)),
    (64, 0, Tile(rows=64, outputs=128, depth=64, warps=4, stages=5, swapped=True)),
    (128, 16384, Tile(rows=128, outputs=64, depth=64, warps=4, stages=8)),
    (128, 0, Tile(rows=128, outputs=128, depth=64, warps=8, stages=5, swapped=True)),
    (MANY, 16384, Tile(rows=128, outputs=128, depth=64, warps=8, stages=6)),
    (MANY, 0, Tile(rows=256, outputs=128, depth=64, warps=8, stages=4)),
)


# For codes, which are always the left operand.
CODES_ANCHOR = Tile(rows=16, outputs=64, depth=0, warps=4, stages=7, swapped=True)
CODES_TILES = (
    (16, 0, CODES_ANCHOR),
    (32, 0, Tile(rows=32, outputs=64, depth=0, warps=4, stages=5, swapped=True)),
    (64, 0, Tile(rows=64, outputs=64, depth=0, warps=4, stages=3, swapped=True)),
    (128, 0, Tile(rows=128, outputs=64, depth=0, warps=4, stages=2, swapped=True)),
    (MANY, 0, Tile(rows=128, outputs=128, depth=0, warps=8, stages=2, swapped=True)),
)
LOOKED_UP = 2  # more stages: those in which entries of tables are loaded, once their numbers are there
CODES_PLAIN = Tile(rows=32, outputs=32, depth=0, warps=4, stages=2, swapped=True)  # float32


@dataclass(frozen=True, slots=True)
class Step:
    """`tile` is for so many rows."""

    least: int
    most: int
    tile: Tile


def anchor(dtype: torch.dtype, codes: bool = False) -> Tile:
    """The tile whose bits are those of every other way, for these operands."""
    if dtype.itemsize > 2:
        return CODES_PLAIN if codes else PLAIN
    return CODES_ANCHOR if codes else ANCHOR


def steps(outputs: int, dtype: torch.dtype, codes: bool = False) -> list[Step]:
    """The tiles of a product with so many outputs, whose operands are `dtype`, by the number of rows. `codes`: of a
    CodedLinear."""
    if dtype.itemsize > 2:
        return [Step(1, MANY, anchor(dtype, codes))]
    tiles = CODES_TILES if codes else TILES
    fitting = [(most, tile) for most, widest, tile in tiles if not widest or outputs <= widest]
    first = dict(reversed(fitting))  # of two for the same rows, the one that comes first
    ends = [0, *sorted(first)]
    return [Step(least + 1, most, first[most]) for least, most in pairwise(ends)]


def multiply(
    x: torch.Tensor,
    linear: Linear,
    dtype: torch.dtype,
    tile: Tile,
    out: torch.Tensor | None = None,
    routes: Routes | None = None,
    added: Added | None = None,
    begin: int = 0,
) -> torch.Tensor:
    """x [rows, inputs] times the weight [outputs, inputs] transposed, plus the bias, in `dtype`; in `out` if it is
    given. With `added`, these are the rows from `begin` on of its product.

    With `routes`, weights are [experts, outputs, inputs] and biases [experts, outputs]. Each place is multiplied by its
    expert's: [places, outputs]. x has a row for each place, or for each token."""
    rows = len(x) if routes is None else len(routes.places)
    outputs, inputs = linear.weight.shape[-2:]
    experts, tiles = 1, triton.cdiv(rows, tile.rows)
    if routes:  # the host does not know how many rows each expert has: the tiles that there may be
        experts = len(routes.ends)
        tiles = min(rows, tiles + min(rows, experts))
    if out is None:
        out = torch.empty(rows, outputs, dtype=dtype, device=x.device)
    assert out.dtype == dtype, out.dtype
    codes = linear.codes if isinstance(linear, CodedLinear) else None
    looks_up = codes is not None and codes.coding.scales == "table"
    assert tile.swapped or not codes, tile
    if rows:
        _multiply[(tiles * triton.cdiv(outputs, tile.outputs),)](
            out,
            x,
            stored(linear),
            codes and codes.factors,
            codes and codes.table,
            linear.bias,
            added and added.numbers[begin:],
            added and added.first,
            routes and routes.places,
            routes and routes.ends,
            rows,
            inputs,
            outputs,
            rows // len(x),
            begin,
            EXPERTS=experts,
            EXPERTS_BLOCK=triton.next_power_of_2(experts),
            EVEN=inputs % (codes.coding.step if codes else tile.depth) == 0,
            ROWS=tile.rows,
            COLUMNS=tile.outputs,
            DEPTH=tile.depth,
            SWAPPED=tile.swapped,
            GROUP=GROUP,
            CODING=codes and codes.coding,
            num_warps=tile.warps,
            num_stages=stages(tile.stages, x.device) + (LOOKED_UP if looks_up else 0),
            **early(x.device),
        )
    return out


def stored(linear: Linear) -> torch.Tensor:
    """What is read of a weight, but for factors."""
    return linear.codes.words if isinstance(linear, CodedLinear) else linear.numbers


@triton.jit
def _tile_of_expert(tile, ends, EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Of all experts' tiles of rows, the expert of this one, and the first and the end of its rows among all sorted
    places. Behind the last tile there are no rows."""
    number = tl.arange(0, EXPERTS_BLOCK)
    end = tl.load(ends + number, number < EXPERTS, 0)
    begin = tl.load(ends + number - 1, (number > 0) & (number < EXPERTS), 0)
    tiles = tl.cdiv(end - begin, ROWS)
    end_tile = tl.cumsum(tiles, 0)
    this = number == tl.sum((end_tile <= tile).to(tl.int32))
    first = tl.sum(tl.where(this, begin + (tile - end_tile + tiles) * ROWS, 0))
    return tl.sum(tl.where(this, number, 0)), first, tl.sum(tl.where(this, end, 0))


@triton.jit(do_not_specialize=["rows", "chosen", "begin"])
def _multiply(
    out,
    x,
    weight,
    factors,
    table,
    bias,
    added,
    first_added,
    places,
    ends,
    rows,
    inputs,
    outputs,
    chosen,  # places for each row of x
    begin,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SWAPPED: tl.constexpr,
    GROUP: tl.constexpr,
    CODING: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    across = tl.cdiv(outputs, COLUMNS)
    first = tl.program_id(0) // (GROUP * across) * GROUP
    height = tl.minimum(tl.num_programs(0) // across - first, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    row = (first + within % height) * ROWS + tl.arange(0, ROWS)
    column = within // height * COLUMNS + tl.arange(0, COLUMNS)
    end_row, end_depth, row_of_x, own = rows, inputs, row % rows, column % outputs
    width = inputs  # of a row of the weight
    if CODING is not None:
        width = tl.cdiv(inputs, CODING.step) * CODING.plane
    if ends is not None:
        wait(EARLY)
        expert, first_row, end_row = _tile_of_expert(first + within % height, ends, EXPERTS, EXPERTS_BLOCK, ROWS)
        row = first_row + tl.arange(0, ROWS)
        end_depth = tl.where(first_row < end_row, inputs, 0)  # no weights are read for no rows
        place = tl.load(places + row, row < end_row, 0)
        row_of_x = place // chosen
        weight += expert.to(tl.int64) * outputs * width
        if bias is not None:
            bias += expert * outputs
        if CODING is not None:
            factors += expert * outputs
    x_row, there = x + row_of_x.to(tl.int64) * inputs, row < end_row
    wait(EARLY)
    weight_row = weight + own.to(tl.int64) * width
    if CODING is None:
        total = _sum(x_row, there, weight_row, inputs, end_depth, EVEN, ROWS, COLUMNS, DEPTH, SWAPPED)
    else:
        at = factors + own
        step = outputs * EXPERTS
        total = sum_of_codes(x_row, there, weight_row, at, step, table, inputs, end_depth, EVEN, ROWS, COLUMNS, CODING)
    if SWAPPED:
        total = tl.trans(total)
    if added is not None:
        adapted = (there & (row + begin >= tl.load(first_added)))[:, None] & (column < outputs)[None, :]
        more = tl.load(added + row.to(tl.int64)[:, None] * outputs + column[None, :], adapted, 0.0)
        total = tl.where(adapted, total + more, total)
    if bias is not None:
        total += tl.load(bias + own).to(tl.float32)[None, :]
    to_row = row
    if ends is not None:
        to_row = place
    to = out + to_row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), there[:, None] & (column < outputs)[None, :])


@triton.jit
def _sum(
    x_row,
    there,
    weight_row,
    inputs,
    end,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SWAPPED: tl.constexpr,
):
    """Float32 sums [ROWS, COLUMNS] over the inputs before `end` in ascending order, or [COLUMNS, ROWS]. Takes pointers
    to rows, and which rows of x are read."""
    depth = tl.arange(0, DEPTH)
    if SWAPPED:
        left, right = weight_row[:, None] + depth[None, :], x_row[None, :] + depth[:, None]
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        left, right = x_row[:, None] + depth[None, :], weight_row[None, :] + depth[:, None]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, end, DEPTH):
        if EVEN and not SWAPPED:
            a, b = tl.load(left + begin), tl.load(right + begin)
        elif EVEN:
            a, b = tl.load(left + begin), tl.load(right + begin, there[None, :], 0.0)
        else:
            inside = depth < inputs - begin
            a = tl.load(left + begin, inside[None, :], 0.0)
            b = tl.load(right + begin, inside[:, None], 0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    return total
