"""Checkpoints of GPTQModel, and the weights that it reads from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from beside import TEXTS, write_all
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig


def write(model: Path, options: dict[str, Any], checkpoint: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    made = GPTQModel.load(str(model), _config(options), device="cpu")
    made.quantize(TEXTS, batch_size=1)
    made.save(str(checkpoint))
    awq = options.get("method") == "awq"
    dtype = torch.bfloat16 if awq else torch.float16  # weights are computed in it: AWQ's are rounded once
    backend = BACKEND.TORCH_AWQ if awq else BACKEND.TORCH
    loaded = GPTQModel.load(str(checkpoint), backend=backend, device="cpu", dtype=dtype).model
    kernels = "gptqmodel.nn_modules.qlinear"
    found = {n: each for n, each in loaded.named_modules() if type(each).__module__.startswith(kernels)}
    return loaded, {f"{name}.weight": (_multiplied if awq else _dequantized)(each) for name, each in found.items()}


def _config(options: dict[str, Any]) -> QuantizeConfig:
    own = dict(options)
    aware = own.pop("act_group_aware", None)  # a field of some of its classes of configs
    config = QuantizeConfig(**own)
    if aware is not None:
        config.act_group_aware = aware
    return config


def _dequantized(module: Any) -> torch.Tensor:
    """The weight [outputs, inputs], computed in float32."""
    scales = module.scales
    module.scales = scales.float()
    weight = module.dequantize_weight().t()
    module.scales = scales
    return weight


def _multiplied(module: Any) -> torch.Tensor:
    with torch.no_grad():
        weight = module(torch.eye(module.in_features, dtype=torch.bfloat16)[None])[0]
    return (weight if module.bias is None else weight - module.bias).t()


write_all(write)
