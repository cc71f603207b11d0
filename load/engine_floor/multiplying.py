"""The ways there are to multiply by a weight matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import linear

Multiply = Callable[[], torch.Tensor]
Way = Callable[[torch.Tensor, torch.Tensor], Multiply]


def ways(device: torch.device, dtype: torch.dtype) -> dict[str, Way]:
    """Each takes rows [rows, inputs] and a weight [outputs, inputs], packs what it packs, and returns the product."""
    known: dict[str, Way] = {"linear": _linear, "mm": _mm}
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        known["mkldnn packed"] = _mkldnn
    if device.type == "cpu" and dtype == torch.float32 and torch.backends.mkl.is_available():
        known["mkl packed"] = _mkl
    return known


def _linear(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    return lambda: linear(rows, weight)


def _mm(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    transposed = weight.t().contiguous()
    return lambda: torch.mm(rows, transposed)


def _mkldnn(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(rows))
    return lambda: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")


def _mkl(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, len(rows))
    return lambda: torch.ops.mkl._mkl_linear(rows, packed, weight, None, len(rows))
