"""A LoRA adapter with random numbers, as PEFT saves one, for tests and load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from services.adapters.peft import CONFIG, WEIGHTS
from services.models.linears import LinearShape


def write_adapter(
    folder: Path, linears: Mapping[str, LinearShape], seed: int, rank: int = 4, deviation: float = 0.3
) -> Path:
    """Write an adapter of all linear layers that can have one. `deviation`: of its numbers, from 0; the default changes
    most tokens of a tiny model."""
    numbers = np.random.default_rng(seed)
    tensors = {}
    for name, shape in linears.items():
        if not shape.obstacle:
            for side, size in ("A", (rank, shape.inputs)), ("B", (shape.outputs, rank)):
                drawn = numbers.standard_normal(size, np.float32) * deviation
                tensors[f"base_model.model.{name}.lora_{side}.weight"] = drawn
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    targets = [name for name, shape in linears.items() if not shape.obstacle]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder
