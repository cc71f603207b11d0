"""The sum of the residual stream and a change, and its norm, in one pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait
from services.engine.families.decoder_weights import Linear


class Change(NamedTuple):
    """What is to be added to the residual stream: `numbers` [tokens, hidden], or their `norm` if there is one. The sum
    is then multiplied by `scale`."""

    numbers: torch.Tensor
    norm: Linear | None = None
    scale: float = 1.0


def add_and_norm(
    x: torch.Tensor,
    change: Change | None,
    norm: Linear | None,
    epsilon: float,
    mean: bool,
    dtype: torch.dtype,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add `change` to x [tokens, hidden] (float32) and return the norm of the sum in `dtype`; the sum itself, if there
    is no norm.

    `mean`: layer norm (Ba et al., 2016); else by root mean square (Zhang and Sennrich, 2019). With `rows` [some], only
    those rows are read, the result is [some, hidden], and x is not modified.
    """
    count, hidden = len(x) if rows is None else len(rows), x.shape[1]
    out = torch.empty(count, hidden, dtype=dtype, device=x.device)
    more, post, scale = change or Change(x)
    if count:
        _add_and_norm[(count,)](
            out,
            x,
            more if change else None,
            post.weight if post else None,
            post.bias if post else None,
            norm.weight if norm else None,
            norm.bias if norm else None,
            rows,
            HIDDEN=hidden,
            SCALE=scale,
            EPSILON=epsilon,
            MEAN=mean,
            BLOCK=triton.next_power_of_2(hidden),
            num_warps=8,
            **early(x.device),
        )
    return out


@triton.jit
def _normed(numbers, weight, bias, column, HIDDEN: tl.constexpr, EPSILON: tl.constexpr, MEAN: tl.constexpr):
    inside = column < HIDDEN
    if MEAN:
        numbers = tl.where(inside, numbers - tl.sum(numbers) / HIDDEN, 0.0)
    scale = tl.rsqrt(tl.sum(numbers * numbers) / HIDDEN + EPSILON)
    numbers = numbers * scale * tl.load(weight + column, inside, 0.0)
    if bias is not None:
        numbers += tl.load(bias + column, inside, 0.0)
    return numbers


@triton.jit
def _add_and_norm(
    out,
    x,
    change,
    post_weight,
    post_bias,
    weight,
    bias,
    rows,
    HIDDEN: tl.constexpr,
    SCALE: tl.constexpr,
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
        more = tl.load(change + row * HIDDEN + column, inside, 0.0).to(tl.float32)
        if post_weight is not None:
            more = _normed(more, post_weight, post_bias, column, HIDDEN, EPSILON, MEAN)
        numbers += more
        if SCALE != 1.0:
            numbers *= SCALE
        if rows is None:
            tl.store(x + row * HIDDEN + column, numbers, inside)
    if weight is not None:
        numbers = _normed(numbers, weight, bias, column, HIDDEN, EPSILON, MEAN)
    tl.store(out + to * HIDDEN + column, numbers.to(out.dtype.element_ty), inside)
