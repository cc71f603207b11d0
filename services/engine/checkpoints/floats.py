"""Floats of 8 bits: FP8 with a scale for a whole weight, for each output, or for each block. Activations stay in the
served dtype, also where the checkpoint would quantize them."""

from __future__ import annotations

import math
from functools import partial

import torch

from services.engine.checkpoints.format import Config, Format, Parts, field
from services.engine.families.quantized import QuantizedWeight
from services.engine.families.values import GroupFormat, Values
from services.errors import ModelError

NUMBERS = torch.float8_e4m3fn
SCALES = ("weight_scale_inv", "weight_scale")  # DeepSeek and Qwen name it by its inverse, but it is the factor itself
Block = tuple[int, int]  # outputs and inputs that share a scale


def fp8(config: Config) -> Format:
    """Raises ModelError for what is not served."""
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
