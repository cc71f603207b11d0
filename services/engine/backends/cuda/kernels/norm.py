"""The sum of the residual stream and a change, and its norm, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait
from services.engine.families.decoder_weights import Linear


def add_and_norm(
    x: torch.Tensor,
    change: torch.Tensor | None,
    norm: Linear,
    epsilon: float,
    mean: bool,
    dtype: torch.dtype,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add `change` [tokens, hidden] to x [tokens, hidden] (float32) and return the norm of the sum in `dtype`.

    `mean`: layer norm (Ba et al., 2016); else by root mean square (Zhang and Sennrich, 2019). With `rows` [some], only
    those rows are read, the result is [some, hidden], and x is not modified.
    """
    count, hidden = len(x) if rows is None else len(rows), x.shape[1]
    out = torch.empty(count, hidden, dtype=dtype, device=x.device)
    if count:
        _add_and_norm[(count,)](
            out,
            x,
            change,
            norm.weight,
            norm.bias,
            rows,
            HIDDEN=hidden,
            EPSILON=epsilon,
            MEAN=mean,
            BLOCK=triton.next_power_of_2(hidden),
            num_warps=8,
            **early(x.device),
        )
    return out


@triton.jit
def _add_and_norm(
    out,
    x,
    change,
    weight,
    bias,
    rows,
    HIDDEN: tl.constexpr,
    EPSILON: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    to = tl.program_id(0).to(tl.int64)
    row = to
    if rows is not None:
        row = tl.load(rows + to).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < HIDDEN
    numbers = tl.load(x + row * HIDDEN + column, inside, 0.0)
    if change is not None:
        numbers += tl.load(change + row * HIDDEN + column, inside, 0.0).to(tl.float32)
        if rows is None:
            tl.store(x + row * HIDDEN + column, numbers, inside)
    if MEAN:
        numbers = tl.where(inside, numbers - tl.sum(numbers) / HIDDEN, 0.0)
    scale = tl.rsqrt(tl.sum(numbers * numbers) / HIDDEN + EPSILON)
    normed = numbers * scale * tl.load(weight + column, inside, 0.0)
    if bias is not None:
        normed += tl.load(bias + column, inside, 0.0)
    tl.store(out + to * HIDDEN + column, normed.to(out.dtype.element_ty), inside)
