"""A tiny model as the converter of GGUF files writes it, and the same numbers as safetensors alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import gguf
import torch
from safetensors.torch import load_file, save_file

from services.models.gguf_index import GgufIndex, Place, Source

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # those that the package gguf can write


def keep_in_blocks(folder: Path) -> Path:
    """Keep each product of the model in `folder` in blocks, one after another in another format. Returns a folder with
    the same numbers."""
    weights, places, kinds = load_file(folder / "model.safetensors"), {}, {}
    data = b"something before"
    for i, (name, weight) in enumerate(sorted(weights.items())):
        if weight.ndim == 2:
            kind = gguf.GGMLQuantizationType[KINDS[i % len(KINDS)]]
            rows = gguf.quantize(weight.float().numpy(), kind)
            places[name], kinds[name] = Place(0, len(data), *rows.shape, kind.name), kind.name
            data += rows.tobytes()
            weights[name] = torch.from_numpy(gguf.dequantize(rows, kind)).bfloat16()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    numbers = shutil.copytree(folder, folder.with_name("numbers"))
    save_file(weights, numbers / "model.safetensors", {"format": "pt"})
    others = {name: weight for name, weight in weights.items() if name not in places}
    save_file(others, folder / "model.safetensors", {"format": "pt"})
    file = folder.with_name(f"{folder.name}.gguf")
    file.write_bytes(data)
    GgufIndex([Source.of(file)], places, kinds, [("blocks", hashlib.sha256(data).hexdigest())]).write(folder)
    return numbers
