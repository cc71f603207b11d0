"""Floats of 8 and of 4 bits with scales. Activations stay in the served dtype, also where the checkpoint would quantize
them.

FP8 (e4m3) has a scale for a whole weight, for each output, or for each block. Floats of 4 bits (e2m1) lie two in a
byte, with a scale for each group of inputs: a power of two in MXFP4, e4m3 times a factor of the whole weight in NVFP4.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from services.engine.weights.format import Config, Format, Parts, field
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Values
from services.errors import ModelError

NUMBERS = torch.float8_e4m3fn
SCALES = ("weight_scale_inv", "weight_scale")  # DeepSeek and Qwen name it by its inverse, but it is the factor itself
Block = tuple[int, int]  # outputs and inputs that share a scale

BIAS = 127  # of the exponents that are stored for powers of two
GPT_OSS_GROUP = 32


def fp8(config: Config) -> Format:
    """How FP8 weights are stored by this config. Raises ModelError for what is not served."""
    field(config, "fmt", ("e4m3",), "e4m3")
    size = config.get("weight_block_size")
    block = (size[0], size[1]) if size else None
    parts = (*(f".{scale}" for scale in SCALES), ".input_scale", ".activation_scale")
    read = partial(_read_fp8, block)
    method = f"{config['quant_method']}{f', blocks of {block[0]} x {block[1]}' if block else ''}"
    groups = partial(_fp8_groups, block)
    return Format({f".{scale}": ".weight" for scale in SCALES}, parts, read, method, groups)


def _read_fp8(block: Block | None, parts: Parts) -> QuantizedWeight:
    return scaled(parts.tensor("weight"), parts.tensor(_scale_of(parts)), block)


def _fp8_groups(block: Block | None, parts: Parts) -> GroupFormat:
    return scaled_groups(parts.shape("weight")[1], parts.shape(_scale_of(parts)), block)


def _scale_of(parts: Parts) -> str:
    """The name of a module's scales."""
    return SCALES[1] if parts.optional(SCALES[0]) is None else SCALES[0]


def scaled(weight: torch.Tensor, scale: torch.Tensor, block: Block | None) -> QuantizedWeight:
    """The weight, e4m3, with its scales."""
    if weight.dtype != NUMBERS:
        raise ModelError(f"weights of type {weight.dtype} with scales are not served, only {NUMBERS}")
    rows, columns = weight.shape
    size = scaled_groups(columns, tuple(scale.shape), block).size
    factors = scale.to(torch.float32)
    if block and factors.numel() > 1:
        factors = factors.repeat_interleave(block[0], 0)[:rows]
        factors = factors.repeat_interleave(block[1] // size, 1)[:, : columns // size]
    else:
        factors = factors.reshape(-1, 1).expand(rows, 1)
    return QuantizedWeight.of_values(weight.view(torch.uint8), factors.contiguous(), size, Values.E4M3)


def scaled_groups(inputs: int, scale: tuple[int, ...], block: Block | None) -> GroupFormat:
    """The groups of `scaled`, for a scale of this shape. If the last block is smaller than the others, blocks are
    several groups."""
    size = math.gcd(block[1], inputs) if block and math.prod(scale) > 1 else inputs
    return GroupFormat(8, size, Values.E4M3)


def mxfp4(config: Config) -> Format:
    """Weights of experts, as GPT-OSS has them: a tensor has those of all experts of a layer."""
    return Format({"_blocks": ""}, ("_blocks", "_scales"), _read_mxfp4, "mxfp4", _mxfp4_groups, of_experts=True)


def _read_mxfp4(parts: Parts) -> QuantizedWeight:
    """The file has [outputs, groups, 16] bytes, and an exponent for each group."""
    return paired(parts.tensor("blocks").flatten(1), powers_of_two(parts.tensor("scales")))


def _mxfp4_groups(parts: Parts) -> GroupFormat:
    return GroupFormat(4, GPT_OSS_GROUP, Values.E2M1)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """What exponents of 8 bits stand for, in float32."""
    shifted = exponents.to(torch.int32) - BIAS
    return torch.ldexp(torch.ones_like(shifted, dtype=torch.float32), shifted)


def paired(packed: torch.Tensor, scales: torch.Tensor) -> QuantizedWeight:
    """The weight of bytes [outputs, inputs / 2] with the lower half of each first, and of scales [outputs, groups]."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    return QuantizedWeight.of_values(codes, scales, *paired_groups(tuple(packed.shape), tuple(scales.shape))[1:])


def paired_groups(packed: tuple[int, ...], scales: tuple[int, ...]) -> GroupFormat:
    """The groups of `paired`, for bytes and scales of these shapes."""
    inputs, groups = 2 * packed[1], scales[1]
    if inputs % groups:
        raise ModelError(f"{inputs} inputs of floats of four bits in {groups} groups are not served")
    return GroupFormat(4, inputs // groups, Values.E2M1)
