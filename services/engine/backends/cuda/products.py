"""The ways to multiply by a weight."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import linear as torch_linear

from services.engine.families.weights import Linear


class Product(Protocol):
    def __call__(
        self, x: torch.Tensor, linear: Linear, dtype: torch.dtype, /, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [rows, inputs] times the weight [outputs, inputs] transposed, plus the bias: [rows, outputs] in `dtype`, in
        `out` if it is given; a product with a bias has none."""
        ...


def library_product(
    x: torch.Tensor, linear: Linear, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """By the device's library, which picks its order of sums by the number of rows."""
    if linear.bias is not None:
        assert dtype == x.dtype, f"a bias in {x.dtype} is added in it, not in {dtype}"
        assert out is None, "a product with a bias makes its own tensor"
        return torch_linear(x, linear.weight, linear.bias)
    weight = linear.weight.t()
    if dtype == x.dtype or not len(x):
        return torch.mm(x, weight, out=out).to(dtype)
    return torch.mm(x, weight, out_dtype=dtype, out=out)
