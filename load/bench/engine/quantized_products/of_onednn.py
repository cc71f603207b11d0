"""oneDNN, through torch's operators."""

from __future__ import annotations

import warnings

import torch

from load.bench.engine.quantized_products.cases import Case
from load.bench.engine.quantized_products.of_torch import signed
from load.bench.engine.quantized_products.ways import Multiply, Product, Way

USUAL_ROWS = 32  # that oneDNN packs weights for
LARGEST = 5.0  # of the rows' numbers, which are normally distributed: what a calibration would find
ZERO = 128  # the code of 0 in rows of eight bits without a sign


def plain(case: Case) -> Product:
    """`linear` of bfloat16: the weights are not packed before."""
    weight = case.weights["bfloat16"]
    assert isinstance(weight, torch.Tensor)

    def copy() -> Multiply:
        own = weight.clone()
        return lambda rows: torch.nn.functional.linear(rows, own)

    return Product(weight, weight.nbytes, torch.bfloat16, copy)


def packed(case: Case) -> Product:
    """`mkldnn._linear_pointwise`: bfloat16 in oneDNN's order."""
    weight = case.weights["bfloat16"]
    assert isinstance(weight, torch.Tensor)

    def copy() -> Multiply:
        own = torch.ops.mkldnn._reorder_linear_weight(weight, USUAL_ROWS)
        return lambda rows: torch.ops.mkldnn._linear_pointwise(rows, own, None, "none", [], "")

    return Product(weight, weight.nbytes, torch.bfloat16, copy)


def static_int8(case: Case) -> Product:
    """`onednn.qlinear_pointwise`: rows in eight bits with a scale that is fixed before. The time contains the rows'
    quantisation."""
    weight = case.quantized("int8")
    codes, scales = signed(weight), weight.scales[:, 0].contiguous()
    zeros = torch.zeros(len(codes), dtype=torch.int32)
    scale = LARGEST / (ZERO - 1)

    def copy() -> Multiply:
        own = torch.ops.onednn.qlinear_prepack(codes, [USUAL_ROWS, case.shape.inputs])

        def multiply(rows: torch.Tensor) -> torch.Tensor:
            short = (rows * (1 / scale)).round_().add_(ZERO).clamp_(0, 255).to(torch.uint8)
            product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
                short, scale, ZERO, own, scales, zeros, None, 1.0, 0, torch.bfloat16, "none", [], ""
            )
            return product

        return multiply

    return Product(weight, codes.nbytes + scales.nbytes, torch.float32, copy)


def dynamic_int8(case: Case) -> Product:
    """`quantized.linear_dynamic` with oneDNN: one scale for all rows of a call, by the largest number among them."""
    weight = case.quantized("int8")
    scales = weight.scales[:, 0].to(torch.float64)
    codes = signed(weight)

    def copy() -> Multiply:
        torch.backends.quantized.engine = "onednn"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # quantised tensors are deprecated
            tensor = torch._make_per_channel_quantized_tensor(codes, scales, torch.zeros_like(scales).long(), 0)
            own = torch.ops.quantized.linear_prepack(tensor, None)
        return lambda rows: torch.ops.quantized.linear_dynamic(rows, own, False)

    return Product(weight, codes.nbytes + scales.nbytes, torch.float32, copy)


WAYS: dict[str, Way] = {
    "oneDNN bfloat16, linear": plain,
    "oneDNN bfloat16, packed": packed,
    "oneDNN int8, fixed scale": static_int8,
    "oneDNN int8, scale of the call": dynamic_int8,
}
