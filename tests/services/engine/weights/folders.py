"""Tiny quantized folders, each beside the folder with the same numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from writer import Writer

PRODUCTS = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight", "lm_head.weight")


def quantize_folder(
    plain: Path,
    folders: Path,
    config: dict[str, Any],
    write: Writer,
    kept: str = "lm_head",
    others: Mapping[str, Writer] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> tuple[Path, Path]:
    """Random quantized weights in place of those of all layers in the folder `plain`, but for modules whose name has
    `kept`. `others`: who writes the modules whose names have these parts instead; `renamed`: parts of names that only
    the quantized folder has otherwise. Returns a quantized folder, and one with the same numbers, rounded to bfloat16.
    """
    tensors, rng = load_file(plain / "model.safetensors"), np.random.default_rng(3)
    stored, numbers = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if name.endswith(PRODUCTS) and kept not in name:
            chosen = next((other for part, other in (others or {}).items() if part in name), write)
            written = chosen(rng, *weight.shape)
            del stored[name]
            stored |= {name.removesuffix("weight") + part: tensor for part, tensor in written.tensors.items()}
            numbers[name] = torch.from_numpy(written.numbers.copy()).to(torch.bfloat16).to(torch.float32)
    for old, new in (renamed or {}).items():
        stored = {name.replace(old, new): tensor for name, tensor in stored.items()}
    quantized, dequantized = folders / "quantized", folders / "numbers"
    for folder, own in ((quantized, stored), (dequantized, numbers)):
        folder.mkdir()
        shutil.copy(plain / "config.json", folder)
        save_file({name: tensor.contiguous() for name, tensor in own.items()}, folder / "model.safetensors")
    set_config(quantized, config)
    return quantized, dequantized


def set_config(folder: Path, config: dict[str, Any]) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
