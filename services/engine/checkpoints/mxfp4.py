"""MXFP4, as GPT-OSS stores its experts: 32 numbers of 4 bits with an exponent."""

from __future__ import annotations

import torch

from services.engine.checkpoints.format import Config, Format, Parts

HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the numbers of 4 bits without the sign
BIAS = 127  # of the exponents


def mxfp4(config: Config) -> Format:
    return Format({"_blocks": ""}, ("_blocks", "_scales"), _read, "mxfp4", refused="MXFP4 is not executed")


def _read(parts: Parts) -> torch.Tensor:
    """Experts [experts, inputs, outputs]. The file has them as [experts, outputs, groups, 16], with the lower half of a
    byte first."""
    blocks, exponents = parts.tensor("blocks"), parts.tensor("scales").to(torch.int32) - BIAS
    numbers = torch.tensor([*HALVES, *(-half for half in HALVES)])
    pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    weights = torch.ldexp(numbers[pairs.long()], exponents[..., None])
    return weights.to(torch.bfloat16).flatten(-2).transpose(1, 2).contiguous()
