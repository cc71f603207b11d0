"""The ways there are to multiply by a weight matrix."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from services.engine.lean.weights import Linear
from services.engine.native.build import NoKernels, kernels
from services.engine.native.packing import Packer
from services.files import user_cache

Multiply = Callable[[], torch.Tensor]
Way = Callable[[torch.Tensor, torch.Tensor], Multiply]


def ways(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> dict[str, Way]:
    """Each takes rows [rows, inputs] and a weight [outputs, inputs] in `dtype`, packs what it packs, and returns the
    product. One is the engine's own kernel, with weights in the dtype in which the engine keeps them, `stored`.
    """
    known: dict[str, Way] = {"linear": _linear, "mm": _mm}
    if device.type == "cpu":
        with contextlib.suppress(NoKernels):
            known["kernel"] = _kernel(kernels(user_cache()), dtype, stored)
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


def _kernel(library: ctypes.CDLL, dtype: torch.dtype, stored: torch.dtype) -> Way:
    def way(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
        short = stored == torch.int8
        packer = Packer(library, stored if short else dtype, torch.get_num_threads())
        matrix = packer.matrix(Linear(weight if short else weight.to(stored)))
        given = rows.to(torch.float32)
        product = torch.empty(len(rows), len(weight))

        def multiply() -> torch.Tensor:
            x, to = ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(product.data_ptr())
            library.orca_multiply(ctypes.byref(matrix), x, len(given), packer.threads, to)
            return product

        return multiply

    return way


def _mkldnn(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(rows))
    return lambda: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")


def _mkl(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, len(rows))
    return lambda: torch.ops.mkl._mkl_linear(rows, packed, weight, None, len(rows))
