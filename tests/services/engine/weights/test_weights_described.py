"""What an engine says about how it keeps the weights of a quantized checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import quantize_folder
from written import WRITERS

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.weights.description import tensor_bytes

SETTINGS = EngineSettings("cpu", "bfloat16", block_size=16, kv_blocks=20, threads=1)


def described(folder: Path, **changed: Any) -> str:
    return Engine.load(folder, replace(SETTINGS, **changed)).figures.weights


@pytest.mark.parametrize(
    ("case", "changed", "said"),
    [
        ("gptq", {}, "gptq, 4 bits in groups of 32: all 14 quantized weights as stored, "),
        ("gptq", {"weights": "dtype"}, ": all 14 quantized weights kept as bfloat16 (--weights dtype), "),
        ("gptq", {"weights": "int8"}, ": all 14 quantized weights kept as int8 (--weights int8), "),
        ("gptq", {"fast_path": False}, " kept as bfloat16 (transformers' layers execute numbers), "),
        ("fp8, blocks", {}, "fp8, blocks of 48 x 48: all 14 quantized weights as stored, "),
        ("fp8, one scale", {}, "fp8: all 14 quantized weights as stored, "),
        ("compressed, fp8", {"fast_path": False}, " kept as bfloat16 (transformers' layers execute numbers), "),
        ("modelopt, nvfp4", {}, "modelopt NVFP4: all 14 quantized weights as stored, "),
        ("compressed, nvfp4", {}, "compressed-tensors nvfp4-pack-quantized: all 14 quantized weights as stored, "),
        ("bitsandbytes, nf4", {"fast_path": False}, "bitsandbytes, nf4: all 14 quantized weights kept as bfloat16 ("),
        ("gptq, act-order", {}, ", act-order: all 14 quantized weights kept as bfloat16 (groups of act-order are not"),
    ],
)
def test_quantized_folders(
    case: str, changed: dict[str, Any], said: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, _ = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS[case])
    assert said in described(folder, **changed)


def test_a_model_of_numbers(tiny_model: Callable[[str], Path]) -> None:
    engine = Engine.load(tiny_model("llama"), SETTINGS)
    assert engine.figures.weights == f"bfloat16, {engine.figures.weight_bytes / 1e6:,.0f} MB in memory"


def test_the_default_model(default_model: Path) -> None:
    stored = Engine.load(default_model, SETTINGS).figures
    widened = Engine.load(default_model, replace(SETTINGS, weights="dtype")).figures
    assert stored.weights.startswith("gguf Q4_1")
    assert ": all 211 quantized weights as stored, " in stored.weights
    assert "all 211 quantized weights kept as bfloat16 (--weights dtype)" in widened.weights
    assert stored.weight_bytes < 0.6 * widened.weight_bytes


def test_memory_counts_a_shared_tensor_once() -> None:
    tensor = torch.zeros(10)
    assert tensor_bytes([tensor, (tensor, torch.zeros(3, dtype=torch.int8))], "text", None) == 43
