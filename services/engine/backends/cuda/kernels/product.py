"""A batch-invariant product: tiles are fixed and one program computes each sum, so a row's bits depend on it alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.families.weights import Linear

ROWS, COLUMNS, DEPTH = 64, 64, 64
GROUP = 8  # tiles of rows that run together, so that they find the weights in the second-level cache


def multiply(x: torch.Tensor, linear: Linear, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, inputs] times the weight [outputs, inputs] transposed, plus the bias, in `dtype`; in `out` if it is
    given. Sums are float32."""
    rows, inputs = x.shape
    outputs = linear.weight.shape[0]
    if out is None:
        out = torch.empty(rows, outputs, dtype=dtype, device=x.device)
    assert out.dtype == dtype, out.dtype
    if rows:
        _multiply[(triton.cdiv(rows, ROWS) * triton.cdiv(outputs, COLUMNS),)](
            out,
            x,
            linear.numbers,
            linear.bias,
            rows,
            INPUTS=inputs,
            OUTPUTS=outputs,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            DEPTH=DEPTH,
            GROUP=GROUP,
            num_warps=4,
            num_stages=4,
        )
    return out


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    out,
    x,
    weight,
    bias,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    across: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    first = tl.program_id(0) // (GROUP * across) * GROUP
    height = tl.minimum(tl.cdiv(rows, ROWS) - first, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    row = (first + within % height) * ROWS + tl.arange(0, ROWS)
    column = within // height * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    left = x + (row % rows).to(tl.int64)[:, None] * INPUTS + depth[None, :]
    right = weight + (column % OUTPUTS).to(tl.int64)[None, :] * INPUTS + depth[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, INPUTS, DEPTH):
        inside = depth < INPUTS - begin
        a = tl.load(left + begin, inside[None, :], 0.0)
        b = tl.load(right + begin, inside[:, None], 0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + column % OUTPUTS).to(tl.float32)[None, :]
    place = out + row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty), (row < rows)[:, None] & (column < OUTPUTS)[None, :])
