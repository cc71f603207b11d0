"""Floats of 4 bits (e2m1), two in a byte, with a scale for each group of inputs: a power of two in MXFP4, e4m3 times a
factor of the whole weight in NVFP4. Activations stay in the served dtype, also where the checkpoint would quantize
them."""

from __future__ import annotations

import torch

from services.engine.checkpoints.format import Config, Format, Parts
from services.engine.families.quantized import QuantizedWeight
from services.engine.families.values import GroupFormat, Values
from services.errors import ModelError

BIAS = 127  # of the exponents that are stored for powers of two
GPT_OSS_GROUP = 32


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
