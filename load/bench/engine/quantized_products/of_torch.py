"""torch's own operators for weights of four and eight bits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from load.bench.engine.quantized_products.cases import Case, Format
from load.bench.engine.quantized_products.ways import Multiply, Product, Unavailable, Way
from services.engine.families.quantized import QuantizedWeight

aten = torch.ops.aten
MIDDLE = 8  # the code that torch's four-bit operators take for 0


def int4(format: Format) -> Way:
    """`_weight_int4pack_mm_for_cpu`: weight = scale * (code - 8) + offset, with both in bfloat16."""

    def way(case: Case) -> Product:
        weight = case.quantized(format)
        panels = aten._convert_weight_to_int4pack_for_cpu(weight.codes.to(torch.int32), 1)
        offsets = weight.offsets + MIDDLE * weight.scales
        factors = torch.stack([weight.scales.t(), offsets.t()], -1).to(torch.bfloat16).contiguous()

        def copy() -> Multiply:
            own, group = (panels.clone(), factors.clone()), weight.group
            return lambda rows: aten._weight_int4pack_mm_for_cpu(rows, own[0], group, own[1])

        return Product(weight, panels.nbytes + factors.nbytes, torch.bfloat16, copy)

    return way


def dynamic_int4(case: Case) -> Product:
    """`_dyn_quant_matmul_4bit`: rows are quantised to eight bits; weights have no offsets."""
    weight = case.quantized("GPTQ")
    outputs, inputs = weight.shape
    pairs = (weight.codes[:, 1::2] << 4 | weight.codes[:, 0::2]).contiguous()
    scales = weight.scales.to(torch.bfloat16).contiguous()
    sizes = weight.group, inputs, outputs
    panels = _available(lambda: aten._dyn_quant_pack_4bit_weight(pairs, scales, None, *sizes))

    def copy() -> Multiply:
        own = panels.clone()
        return lambda rows: aten._dyn_quant_matmul_4bit(rows, own, *sizes)

    return Product(weight, panels.nbytes, torch.float32, copy)


def separate_factors(case: Case) -> Product:
    """`_weight_int4pack_mm_with_scales_and_zeros`, by which torch calls oneDNN's products of weights in four bits on
    other devices than a CPU."""
    weight = case.quantized("GPTQ")
    pairs = (weight.codes[:, 1::2] << 4 | weight.codes[:, 0::2]).contiguous().view(torch.int32)
    scales = weight.scales.t().to(torch.bfloat16).contiguous()
    zeros = torch.full_like(scales, MIDDLE, dtype=torch.int8)

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = aten._weight_int4pack_mm_with_scales_and_zeros(rows, pairs, weight.group, scales, zeros)
        return found

    _available(lambda: multiply(torch.zeros(1, case.shape.inputs, dtype=torch.bfloat16)))
    return Product(weight, pairs.nbytes + scales.nbytes + zeros.nbytes, torch.bfloat16, lambda: multiply)


def int8(case: Case) -> Product:
    """`_weight_int8pack_mm`: a scale for each output."""
    weight = case.quantized("int8")
    codes, scales = signed(weight), weight.scales[:, 0].to(torch.bfloat16)

    def copy() -> Multiply:
        own = codes.clone()
        return lambda rows: aten._weight_int8pack_mm(rows, own, scales)

    return Product(weight, codes.nbytes + scales.nbytes, torch.bfloat16, copy)


def signed(weight: QuantizedWeight) -> torch.Tensor:
    """Eight-bit codes around 0."""
    return (weight.codes.to(torch.int16) - 128).to(torch.int8)


def _available(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Its result. Raises Unavailable with torch's error."""
    try:
        return call()
    except (RuntimeError, AttributeError) as error:
        raise Unavailable(f"{type(error).__name__}: {str(error).split('. ')[0]}") from error


WAYS: dict[str, Way] = {
    "torch int4pack, Q4_1": int4("Q4_1"),
    "torch int4pack, GPTQ": int4("GPTQ"),
    "torch dyn_quant 4bit, GPTQ": dynamic_int4,
    "torch int4pack with zeros, GPTQ": separate_factors,
    "torch int8pack": int8,
}
