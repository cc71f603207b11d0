"""Elementwise kernels: activations between the products of an MLP, and the soft cap of logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait
from services.engine.spec import Activation, DecoderSpec

BLOCK = 1024


def activate(up: torch.Tensor, spec: DecoderSpec) -> torch.Tensor:
    """[rows, width], between the products of an MLP. Gated, up [rows, 2 * width] has gates and what they multiply; else
    it is [rows, width]."""
    if not spec.gated:
        return _launch(up, None, spec.activation)
    gates, factors = up.chunk(2, dim=1)
    return _launch(gates, factors, spec.activation, spec.swiglu_alpha, spec.swiglu_limit)


def activate_times(gates: torch.Tensor, factors: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation of gates [rows, width], times `factors` [rows, width], which may be a part of wider rows."""
    return _launch(gates, factors, activation)


def soft_cap(numbers: torch.Tensor, cap: float) -> None:
    """Make each x of `numbers` [rows, columns] cap * tanh(x / cap), in place. They are float32."""
    rows, columns = numbers.shape
    if rows:
        grid = rows, triton.cdiv(columns, BLOCK)
        _soft_cap[grid](numbers, COLUMNS=columns, CAP=cap, BLOCK=BLOCK, num_warps=4, **early(numbers.device))


def _launch(
    gates: torch.Tensor, factors: torch.Tensor | None, activation: Activation, alpha: float = 1.0, limit: float = 0.0
) -> torch.Tensor:
    rows, width = gates.shape
    out = torch.empty(rows, width, dtype=gates.dtype, device=gates.device)
    if rows:
        _activate[(rows, triton.cdiv(width, BLOCK))](
            out,
            gates,
            factors,
            WIDTH=width,
            STEP=gates.stride(0),
            FACTORS_STEP=0 if factors is None else factors.stride(0),
            ACTIVATION=activation.name,
            ALPHA=alpha,
            LIMIT=limit,
            BLOCK=BLOCK,
            num_warps=4,
            **early(gates.device),
        )
    return out


@triton.jit
def _activate(
    out,
    gates,
    factors,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    FACTORS_STEP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    numbers = tl.load(gates + row * STEP + column, inside, 0.0).to(tl.float32)
    if LIMIT > 0:
        numbers = tl.where(numbers > LIMIT, LIMIT, numbers)  # NaN stays
    if ACTIVATION == "SILU":
        numbers = numbers / (1.0 + tl.exp(-ALPHA * numbers))
    elif ACTIVATION == "GELU":
        inner = 0.7978845608028654 * (numbers + 0.044715 * numbers * numbers * numbers)  # sqrt(2 / pi)
        # tanh(z) = 1 - 2 / (exp(2 z) + 1), which neither overflows nor is undefined at large z
        numbers *= 1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0)
    else:
        tl.static_assert(ACTIVATION == "RELU_SQUARED")
        numbers = tl.where(numbers < 0.0, 0.0, numbers)
        numbers *= numbers
    if factors is not None:
        others = tl.load(factors + row * FACTORS_STEP + column, inside, 0.0).to(tl.float32)
        if LIMIT > 0:
            others = tl.where(others > LIMIT, LIMIT, tl.where(others < -LIMIT, -LIMIT, others)) + 1.0
        numbers *= others
    tl.store(out + row * WIDTH + column, numbers.to(out.dtype.element_ty), inside)


@triton.jit
def _soft_cap(numbers, COLUMNS: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr = False):
    wait(EARLY)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = numbers + tl.program_id(0).to(tl.int64) * COLUMNS + column
    x = tl.load(at, column < COLUMNS, 0.0)
    tl.store(at, CAP * (1.0 - 2.0 / (tl.exp(x * (2.0 / CAP)) + 1.0)), column < COLUMNS)
