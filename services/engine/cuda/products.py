"""The ways to multiply by a weight."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import linear as torch_linear

from services.engine.lean.weights import Linear


class Product(Protocol):
    def __call__(self, x: torch.Tensor, linear: Linear, dtype: torch.dtype, /) -> torch.Tensor:
        """x [rows, inputs] times the weight [outputs, inputs] transposed, plus the bias: [rows, outputs] in `dtype`."""
        ...


def library_product(x: torch.Tensor, linear: Linear, dtype: torch.dtype) -> torch.Tensor:
    """By the device's library, which picks its order of sums by the number of rows."""
    if dtype == x.dtype:
        return torch_linear(x, linear.weight, linear.bias)
    assert linear.bias is None, "a bias is added in the dtype of x"
    return torch.mm(x, linear.weight.t(), out_dtype=dtype)
