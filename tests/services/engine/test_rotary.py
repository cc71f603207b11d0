"""Rotary embeddings of the lean path, and what it does not import for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM

from services.engine.lean.rotary import rotary_table

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 10_000.0},
    "linear": {"rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("rope", ROPES)
def test_tables_are_transformers_own(family: str, rope: str) -> None:
    config = AutoConfig.for_model(family, **FAMILIES[family], rope_parameters={"rope_type": rope, **ROPES[rope]})
    with torch.device("meta"):
        kind = type(AutoModelForCausalLM.from_config(config).model.rotary_emb)
    expected = kind(config)(torch.zeros(1), torch.arange(256)[None])
    for table, both_halves in zip(rotary_table(config, 256), expected, strict=True):
        assert torch.equal(torch.cat([table, table], dim=1), both_halves[0])


LOAD = """
import sys
from pathlib import Path
from services.engine.engine import Engine
from services.engine.preload import preload
from services.engine.settings import EngineSettings

folder, settings = Path(sys.argv[1]), EngineSettings("cpu", "float32", kv_blocks=8)
preload(folder, settings)
Engine.load(folder, settings)
assert "transformers.modeling_utils" not in sys.modules
"""


def test_transformers_layers_are_not_imported(tiny_model: Callable[[str], Path]) -> None:
    """Importing them takes seconds, which would count in each start of an engine."""
    subprocess.run([sys.executable, "-c", LOAD, tiny_model("llama")], check=True, cwd=Path(__file__).parents[3])
