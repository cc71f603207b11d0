"""Floats of 8 and 4 bits: FP8 with a scale for a whole weight, for each output, or for each block; MXFP4, as GPT-OSS
stores its experts. Activations stay in the served dtype, also where the checkpoint would quantize them."""

from __future__ import annotations

from functools import partial

import torch

from services.engine.checkpoints.format import Config, Format, Parts, field
from services.errors import ModelError

NOT_EXECUTED = "FP8 is not executed"
NUMBERS = torch.float8_e4m3fn
SCALES = ("weight_scale_inv", "weight_scale")  # DeepSeek and Qwen name it by its inverse, but it is the factor itself
HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # MXFP4's numbers without the sign
BIAS = 127  # of MXFP4's exponents


def fp8(config: Config) -> Format:
    """Raises ModelError for what is not served."""
    field(config, "fmt", ("e4m3",), "e4m3")
    block = config.get("weight_block_size")
    parts = (*(f".{scale}" for scale in SCALES), ".input_scale", ".activation_scale")
    read = partial(_read_fp8, tuple(block) if block else None)
    method = f"{config['quant_method']}{f', blocks of {block[0]} x {block[1]}' if block else ''}"
    return Format({f".{scale}": ".weight" for scale in SCALES}, parts, read, method, lambda _: NOT_EXECUTED)


def _read_fp8(block: tuple[int, int] | None, parts: Parts) -> torch.Tensor:
    scale = parts.optional(SCALES[0])
    return scaled(parts.tensor("weight"), parts.tensor(SCALES[1]) if scale is None else scale, block)


def scaled(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None) -> torch.Tensor:
    """The weight times its scales, in bfloat16. `block`: outputs and inputs that share one; the last may be smaller."""
    if weight.dtype != NUMBERS:
        raise ModelError(f"weights of type {weight.dtype} with scales are not served, only {NUMBERS}")
    rows, columns = weight.shape
    factors = scale.to(torch.float32)
    if block and factors.numel() > 1:
        factors = factors.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    elif factors.numel() == 1:
        factors = factors.reshape(1, 1)
    else:
        factors = factors.reshape(rows, 1)
    return (weight.to(torch.float32) * factors).to(torch.bfloat16)


def mxfp4(config: Config) -> Format:
    parts = ("_blocks", "_scales")
    return Format({"_blocks": ""}, parts, _read_mxfp4, "mxfp4", lambda _: "MXFP4 is not executed", by_expert=True)


def _read_mxfp4(parts: Parts) -> torch.Tensor:
    """Experts [experts, inputs, outputs]. The file has them as [experts, outputs, groups, 16], with the lower half of a
    byte first; the 32 numbers of a group share an exponent."""
    blocks, exponents = parts.tensor("blocks"), parts.tensor("scales").to(torch.int32) - BIAS
    numbers = torch.tensor([*HALVES, *(-half for half in HALVES)])
    pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    weights = torch.ldexp(numbers[pairs.long()], exponents[..., None])
    return weights.to(torch.bfloat16).flatten(-2).transpose(1, 2).contiguous()
