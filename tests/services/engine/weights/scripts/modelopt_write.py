"""Checkpoints of NVIDIA ModelOpt, and the weights that its classes of tensors compute from them.

Its own layers compute NVFP4 on GPUs alone, so the logits are those of transformers' layers with these weights."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from beside import write_all
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

SAMPLES, LENGTH = 16, 64


def write(model: Path, options: dict[str, Any], checkpoint: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    made = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    config = copy.deepcopy(getattr(mtq, options["config"]))
    config["quant_cfg"] += options.get("more", [])
    export_hf_checkpoint(mtq.quantize(made, config, _calibrate), export_dir=checkpoint)
    AutoTokenizer.from_pretrained(model).save_pretrained(checkpoint)
    if options.get("older"):  # as versions before 0.29 wrote it
        _plain_config(checkpoint, checkpoint)
    stored = load_file(checkpoint / "model.safetensors")
    modules = [name.removesuffix(".weight_scale") for name in stored if name.endswith(".weight_scale")]
    weights = {f"{name}.weight": _dequantized(name, stored) for name in modules}
    return _with(weights, stored, checkpoint), weights


def _calibrate(model: Any) -> None:
    drawn = torch.Generator().manual_seed(0)
    for _ in range(SAMPLES):
        model(torch.randint(2, 310, (1, LENGTH), generator=drawn))


def _plain_config(source: Path, target: Path) -> None:
    """The config without what it says of the quantization."""
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config))


def _dequantized(name: str, stored: dict[str, torch.Tensor]) -> torch.Tensor:
    weight, scale = stored[f"{name}.weight"], stored[f"{name}.weight_scale"]
    if weight.dtype == torch.uint8:
        tensor = NVFP4QTensor(torch.Size([len(weight), 2 * weight.shape[1]]), torch.float32, weight)
        return tensor.dequantize(scale=scale, double_scale=stored[f"{name}.weight_scale_2"], block_sizes={-1: 16})
    if scale.dtype == torch.uint8:
        return MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(scale=scale)
    tensor = FP8QTensor(weight.shape, torch.float32, weight)
    if scale.ndim == 4:
        return tensor.dequantize(scale=scale[:, 0, :, 0], block_sizes={-1: 128, -2: 128})
    return tensor.dequantize(scale=scale[:, None] if scale.ndim else scale)


def _with(weights: dict[str, torch.Tensor], stored: dict[str, torch.Tensor], checkpoint: Path) -> Any:
    """transformers' model with these weights."""
    plain = {name: each for name, each in stored.items() if each.dtype == torch.bfloat16}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _plain_config(checkpoint, folder)
        numbers = {each: weight.to(torch.bfloat16).contiguous() for each, weight in weights.items()}
        save_file(plain | numbers, folder / "model.safetensors", {"format": "pt"})
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


write_all(write)
