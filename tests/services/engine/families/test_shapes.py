"""Weights that contradict config.json are refused before an engine runs; those of every family fit theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from services.engine.families.config import load_config
from services.engine.families.registry import FAMILIES, open_weights, spec_of
from services.engine.families.shapes import check_shapes
from services.errors import ModelError


def check(folder: Path, **changed: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    spec = spec_of(load_config(folder))
    assert spec is not None
    check_shapes(open_weights(spec, folder), spec)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_a_family_fit(family: str, tmp_path: Path) -> None:
    make_tiny_model(tmp_path, family)
    check(tmp_path)


@pytest.mark.parametrize(
    ("family", "name", "value", "tensor"),
    [
        ("llama", "hidden_size", 128, "model.embed_tokens.weight"),
        ("llama", "vocab_size", 100000, "model.embed_tokens.weight"),
        ("llama", "num_attention_heads", 2, "q_proj.weight"),
        ("llama", "num_attention_heads", 8, "q_proj.weight"),
        ("llama", "head_dim", 8, "q_proj.weight"),
        ("llama", "intermediate_size", 64, "up_proj.weight"),
        ("llama", "intermediate_size", 256, "up_proj.weight"),
        ("qwen3", "head_dim", 32, "q_proj.weight"),
        ("phi3", "intermediate_size", 64, "gate_up_proj.weight"),
        ("gpt2", "n_embd", 128, "wte.weight"),
        ("olmoe", "num_experts", 4, "router"),
        ("qwen3_moe", "moe_intermediate_size", 8, "experts.0.up_proj"),
    ],
)
def test_a_contradicting_config_is_refused(family: str, name: str, value: int, tensor: str, tmp_path: Path) -> None:
    make_tiny_model(tmp_path, family)
    with pytest.raises(ModelError, match="the weights do not fit config") as refused:
        check(tmp_path, **{name: value})
    assert tensor in str(refused.value)
