"""NVIDIA ModelOpt, as its export of Hugging Face checkpoints writes it: FP8, MXFP8 and NVFP4."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from services.engine.weights.floats import Block, paired, paired_groups, powers_of_two, scaled, scaled_groups
from services.engine.weights.format import Config, Format, Groups, Parts
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Values, Weight
from services.errors import ModelError

MIXED = "MIXED_PRECISION"  # each module has an algorithm of its own
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8", "NVFP4", "W4A16_NVFP4")
BLOCK: Block = (128, 128)  # of FP8_PB_WO
PARTS = ("weight_scale", "weight_scale_2", "input_scale", "k_scale", "v_scale", "k_bias", "v_bias")


def modelopt(config: Config) -> Format:
    """Which modules are quantized, the tensors say, so patterns of others (`ignore`, `exclude_modules`) are not read.
    Raises ModelError for what is not served."""
    own = config.get("quantization") or config
    algorithm = own.get("quant_algo")
    modules = own.get("quantized_layers") or {}
    _check([each.get("quant_algo") for each in modules.values()] if algorithm == MIXED else [algorithm])
    parts = tuple(f".{part}" for part in PARTS)
    return Format({".weight_scale": ".weight"}, parts, _read, f"modelopt {algorithm}", _groups_of)


def _check(algorithms: Iterable[str | None]) -> None:
    for each in algorithms:
        if str(each).upper() not in ALGORITHMS:
            served = " or ".join((*ALGORITHMS, MIXED))
            raise ModelError(f"modelopt with quant_algo={each} is not served, only quant_algo {served}")


def _is_fp4(parts: Parts) -> bool:
    return parts.tensor("weight", (0, 1)).dtype == torch.uint8


def _read(parts: Parts) -> Weight:
    if "pre_quant_scale" in parts:
        raise ModelError("modelopt with scales of a product's inputs (pre_quant_scale) is not served")
    weight, scale = parts.tensor("weight"), parts.tensor("weight_scale")
    if _is_fp4(parts):
        return paired(weight, scale.to(torch.float32) * parts.tensor("weight_scale_2").to(torch.float32))
    if scale.dtype == torch.uint8:
        size = weight.shape[1] // scale.shape[1]
        return QuantizedWeight.of_values(weight.view(torch.uint8), powers_of_two(scale), size, Values.E4M3)
    return scaled(weight, scale.view(_scales(tuple(scale.shape))), _block(scale.ndim))


def _groups_of(parts: Parts) -> Groups:
    weight, scale = parts.shape("weight"), parts.shape("weight_scale")
    if _is_fp4(parts):
        return paired_groups(weight, scale)
    if len(scale) == 2:  # MXFP8
        return GroupFormat(8, weight[1] // scale[1], Values.E4M3)
    return scaled_groups(weight[1], _scales(scale), _block(len(scale)))


def _block(dimensions: int) -> Block | None:
    """Scales of blocks have four dimensions, those of outputs one, and that of a whole weight none."""
    return BLOCK if dimensions == 4 else None


def _scales(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of scales, of blocks without the two dimensions of 1."""
    return shape[::2] if len(shape) == 4 else shape
