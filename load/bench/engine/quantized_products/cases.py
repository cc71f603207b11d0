"""A shape, with random weights in the formats that are compared."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass
from typing import Literal

import torch

from services.engine.families.quantized import QuantizedWeight, Weight, quantize
from services.engine.families.values import GroupFormat, Values

Format = Literal["bfloat16", "Q4_1", "GPTQ", "MXFP4", "NVFP4", "Q8_0", "FP8", "int8"]
STANDARD_DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """A product. The inputs are a multiple of 64, the outputs of 32: all formats and libraries take these."""

    name: str
    inputs: int
    outputs: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """From INPUTSxOUTPUTS."""
        inputs, _, outputs = text.partition("x")
        if not (inputs.isdigit() and outputs.isdigit()) or int(inputs) % 64 or int(outputs) % 32:
            raise ArgumentTypeError(f"{text} is not INPUTSxOUTPUTS with multiples of 64 and 32")
        return cls(text, int(inputs), int(outputs))


SHAPES = (
    Shape("SmolLM2-135M", 576, 1536),
    Shape("Llama 3.2 1B", 2048, 8192),
    Shape("Llama 3.1 8B", 4096, 14336),
)


@dataclass(frozen=True, slots=True)
class Case:
    """The same random weights in each format."""

    shape: Shape
    weights: dict[Format, Weight]

    @classmethod
    def of(cls, shape: Shape) -> Case:
        """Q4_1 and Q8_0 have groups of 32 as in GGUF files, MXFP4 too, NVFP4 of 16, GPTQ and FP8 of 128 (of 64
        where the inputs are no multiple of 128), with scales in float16, NVFP4 and FP8 in float32. int8 has a scale for
        each output, in bfloat16."""
        drawn = torch.Generator().manual_seed(0)
        weight = torch.randn(shape.outputs, shape.inputs, generator=drawn) * STANDARD_DEVIATION
        long = 64 if shape.inputs % 128 else 128
        return cls(
            shape,
            {
                "bfloat16": weight.to(torch.bfloat16),
                "Q4_1": quantize(weight, GroupFormat(4, 32)),
                "GPTQ": symmetric(weight, 4, long),
                "MXFP4": quantize(weight, GroupFormat(4, 32, Values.E2M1)),
                "NVFP4": nvfp4(weight),
                "Q8_0": symmetric(weight, 8, 32),
                "FP8": quantize(weight, GroupFormat(8, long, Values.E4M3)),
                "int8": symmetric(weight, 8, shape.inputs, short_scales=True),
            },
        )

    def quantized(self, format: Format) -> QuantizedWeight:
        """The weights in a format that has codes."""
        weight = self.weights[format]
        assert isinstance(weight, QuantizedWeight), format
        return weight


def symmetric(weight: torch.Tensor, bits: int, group: int, short_scales: bool = False) -> QuantizedWeight:
    """Weights whose code 2^(bits - 1) is 0, with scales in float16. `short_scales`: in bfloat16, rounded towards zero,
    so that the largest weight of a group has the largest code."""
    outputs, inputs = weight.shape
    groups, middle = weight.view(outputs, inputs // group, group), 1 << bits - 1
    scales = groups.abs().amax(-1) / (middle - 1)
    if short_scales:
        scales = (scales.view(torch.int32) & -(1 << 16)).view(torch.float32)
    else:
        scales = scales.to(torch.float16).to(torch.float32)
    codes = (groups / scales[..., None]).round_().clamp_(1 - middle, middle - 1) + middle
    return QuantizedWeight(codes.to(torch.uint8).view(outputs, inputs), scales, scales * -middle, bits, group)


def nvfp4(weight: torch.Tensor) -> QuantizedWeight:
    """Floats of four bits in groups of 16, whose scales are e4m3 times a factor of the whole weight."""
    group = 16
    outputs, inputs = weight.shape
    groups = weight.view(outputs, inputs // group, group)
    most = groups.abs().amax(-1) / Values.E2M1.most
    factor = most.max() / Values.E4M3.most
    scales = (most / factor).to(torch.float8_e4m3fn).to(torch.float32) * factor
    codes = Values.E2M1.codes((groups / scales[..., None]).clamp(-Values.E2M1.most, Values.E2M1.most))
    return QuantizedWeight.of_values(codes.view(outputs, inputs), scales, group, Values.E2M1)


def exact(weight: Weight) -> torch.Tensor:
    """The numbers that the codes stand for, in float64."""
    return weight.to(torch.float64) if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float64)
