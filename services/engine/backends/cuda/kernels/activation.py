"""The activation between the two products of an MLP."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait

BLOCK = 1024


def activate(up: torch.Tensor, gated: bool) -> torch.Tensor:
    """[tokens, width]: gated, silu(gates) * the others, of up [tokens, 2 * width], gates first; else gelu's tanh form
    of up [tokens, width]."""
    tokens, columns = up.shape
    width = columns // 2 if gated else columns
    out = torch.empty(tokens, width, dtype=up.dtype, device=up.device)
    grid = tokens, triton.cdiv(width, BLOCK)
    _activate[grid](out, up, WIDTH=width, GATED=gated, BLOCK=BLOCK, num_warps=4, **early(up.device))
    return out


@triton.jit
def _activate(out, up, WIDTH: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr = False):
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    if GATED:
        gates = tl.load(up + row * 2 * WIDTH + column, inside, 0.0).to(tl.float32)
        numbers = tl.load(up + row * 2 * WIDTH + WIDTH + column, inside, 0.0).to(tl.float32)
        numbers *= gates / (1.0 + tl.exp(-gates))
    else:
        numbers = tl.load(up + row * WIDTH + column, inside, 0.0).to(tl.float32)
        inner = 0.7978845608028654 * (numbers + 0.044715 * numbers * numbers * numbers)  # sqrt(2 / pi)
        # tanh(z) = 1 - 2 / (exp(2 z) + 1), which neither overflows nor is undefined at large z
        numbers *= 1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0)
    tl.store(out + row * WIDTH + column, numbers.to(out.dtype.element_ty), inside)
