"""Products whose tile follows the number of rows.

An output is one float32 sum over the inputs in ascending order, to which the bias is added, and which is then rounded
once. No tile regroups that sum, so a row's bits depend neither on the tile nor on the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.coded import CodedLinear
from services.engine.backends.cuda.kernels.codes import sum_of_codes
from services.engine.backends.cuda.kernels.launch import early, prefetch, wait
from services.engine.families.decoder_weights import Linear

AFTER = 24 << 20  # bytes of the next weights that are read into the second-level cache, of which it holds more
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
# few outputs needs small tiles, or most multiprocessors would idle.
MANY = 1 << 30
TILES = (
    (16, 16384, Tile(rows=16, outputs=64, depth=256, warps=4, stages=4, swapped=True)),
    (16, 0, Tile(rows=16, outputs=128, depth=128, warps=8, stages=4, swapped=True)),
    (32, 16384, Tile(rows=32, outputs=64, depth=256, warps=4, stages=3, swapped=True)),
    (32, 0, Tile(rows=32, outputs=128, depth=128, warps=8, stages=4, swapped=True)),
    (64, 16384, Tile(rows=64, outputs=64, depth=128, warps=4, stages=4, swapped=True)),
    (64, 0, Tile(rows=64, outputs=64, depth=64, warps=4, stages=6, swapped=True)),
    (128, 16384, Tile(rows=128, outputs=32, depth=128, warps=4, stages=4)),
    (128, 0, Tile(rows=128, outputs=128, depth=64, warps=8, stages=5, swapped=True)),
    (512, 0, Tile(rows=128, outputs=128, depth=64, warps=8, stages=5)),
    (MANY, 0, Tile(rows=256, outputs=128, depth=64, warps=8, stages=3)),
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
    after: Linear | None = None,
) -> torch.Tensor:
    """x [rows, inputs] times the weight [outputs, inputs] transposed, plus the bias, in `dtype`; in `out` if it is
    given. Where a program has few rows, the first numbers of the weight of `after`, the next product, are read into the
    second-level cache: memory would idle until that product runs."""
    rows, inputs = x.shape
    outputs = linear.weight.shape[0]
    if out is None:
        out = torch.empty(rows, outputs, dtype=dtype, device=x.device)
    assert out.dtype == dtype, out.dtype
    codes = linear.codes if isinstance(linear, CodedLinear) else None
    assert tile.swapped or not codes, tile
    next_weight = _stored(after) if after and tile.swapped and early(x.device) else None
    if rows:
        _multiply[(triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs),)](
            out,
            x,
            _stored(linear),
            codes and codes.factors,
            codes and codes.table,
            linear.bias,
            next_weight,
            rows,
            inputs,
            outputs,
            0 if next_weight is None else min(AFTER, next_weight.nbytes) // 16 * 16,
            EVEN=inputs % (codes.coding.step if codes else tile.depth) == 0,
            ROWS=tile.rows,
            COLUMNS=tile.outputs,
            DEPTH=tile.depth,
            SWAPPED=tile.swapped,
            GROUP=GROUP,
            CODING=codes and codes.coding,
            num_warps=tile.warps,
            num_stages=tile.stages + (LOOKED_UP if codes and codes.coding.scales == "table" else 0),
            **early(x.device),
        )
    return out


def _stored(linear: Linear) -> torch.Tensor:
    """What is read of a weight, but for factors."""
    return linear.codes.words if isinstance(linear, CodedLinear) else linear.numbers


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    out,
    x,
    weight,
    factors,
    table,
    bias,
    after,
    rows,
    inputs,
    outputs,
    after_bytes,
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
    height = tl.minimum(tl.cdiv(rows, ROWS) - first, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    row = (first + within % height) * ROWS + tl.arange(0, ROWS)
    column = within // height * COLUMNS + tl.arange(0, COLUMNS)
    x_row = x + (row % rows).to(tl.int64) * inputs
    own = column % outputs
    wait(EARLY)
    if CODING is None:
        weight_row = weight + own.to(tl.int64) * inputs
        total = _sum(x_row, row < rows, weight_row, inputs, EVEN, ROWS, COLUMNS, DEPTH, SWAPPED)
    else:
        words_row = weight + own.to(tl.int64) * (tl.cdiv(inputs, CODING.step) * CODING.plane)
        total = sum_of_codes(
            x_row, row < rows, words_row, factors + own, table, inputs, outputs, EVEN, ROWS, COLUMNS, CODING
        )
    if after is not None:
        prefetch(after, after_bytes)
    if SWAPPED:
        total = tl.trans(total)
    if bias is not None:
        total += tl.load(bias + own).to(tl.float32)[None, :]
    place = out + row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty), (row < rows)[:, None] & (column < outputs)[None, :])


@triton.jit
def _sum(
    x_row,
    there,
    weight_row,
    inputs,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SWAPPED: tl.constexpr,
):
    """Float32 sums [ROWS, COLUMNS] over the inputs in ascending order, or [COLUMNS, ROWS]. Takes pointers to rows, and
    which rows of x are read."""
    depth = tl.arange(0, DEPTH)
    if SWAPPED:
        left, right = weight_row[:, None] + depth[None, :], x_row[None, :] + depth[:, None]
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        left, right = x_row[:, None] + depth[None, :], weight_row[None, :] + depth[:, None]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, inputs, DEPTH):
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
