"""Weights that contradict config.json are refused before an engine runs; what a config does not ask for is not used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model

from services.engine.backends.stock.loading import read_model
from services.engine.families.fit import Fit, load_fit, open_fitted
from services.engine.families.registry import FAMILIES, load_spec, open_weights
from services.errors import ModelError

Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def check(folder: Path, **changed: object) -> Fit:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    return load_fit(folder, folder / "cache")


def change(folder: Path, how: Change) -> Path:
    weights = how(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without(name: str) -> Change:
    return lambda weights: {own: tensor for own, tensor in weights.items() if name not in own}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_a_family_fit(family: str, tmp_path: Path) -> None:
    make_tiny_model(tmp_path, family)
    check(tmp_path)


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("llama", "hidden_size", 128),
        ("llama", "vocab_size", 100000),
        ("llama", "num_attention_heads", 2),
        ("llama", "num_attention_heads", 8),
        ("llama", "head_dim", 8),
        ("llama", "intermediate_size", 64),
        ("qwen3", "head_dim", 32),
        ("phi3", "intermediate_size", 64),
        ("gpt2", "n_embd", 128),
        ("olmoe", "num_experts", 4),
        ("qwen3_moe", "moe_intermediate_size", 8),
    ],
)
def test_a_contradicting_config_is_refused(family: str, name: str, value: int, tmp_path: Path) -> None:
    make_tiny_model(tmp_path, family)
    with pytest.raises(ModelError, match=r"do not fit config\.json: .* has shape .*, config\.json asks for"):
        check(tmp_path, **{name: value})


def test_the_shapes_of_all_layers_are_compared(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    folder = change(make_tiny_model(tmp_path), lambda weights: weights | {name: torch.zeros(64, 96)})
    with pytest.raises(ModelError, match=rf"{name} has shape \[64, 96\], config.json asks for \[64, 128\]"):
        check(folder)
    with pytest.raises(ModelError):
        read_model(folder, torch.float32)


@pytest.mark.parametrize(
    ("family", "absent"),
    [("llama", "lm_head"), ("qwen3", "1.self_attn.q_norm"), ("qwen2", "1.self_attn.k_proj.bias"), ("olmoe", "k_norm")],
)
def test_a_tensor_that_the_config_asks_for_is_not_left_out(family: str, absent: str, tmp_path: Path) -> None:
    folder = change(make_tiny_model(tmp_path, family, tie_word_embeddings=False), without(absent))
    with pytest.raises(ModelError, match="the weights do not fit config"):
        check(folder)
    with pytest.raises(ModelError, match=absent):
        read_model(folder, torch.float32)


def test_a_tensor_that_the_config_does_not_ask_for_is_not_used(tmp_path: Path) -> None:
    bias = {f"model.layers.{i}.self_attn.{name}_proj.bias": torch.ones(64) for i in range(2) for name in "qo"}
    folder = change(make_tiny_model(tmp_path), lambda weights: weights | bias)
    assert set(check(folder).ignored) == set(bias)
    spec = load_spec(folder, tmp_path / "cache")
    assert spec
    layer = open_weights(spec, open_fitted(folder, tmp_path / "cache")).layer(0)
    assert layer.qkv.bias is None
    assert layer.output.bias is None


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2"])
def test_weights_of_the_model_without_its_head_have_no_prefix(family: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, family, tie_word_embeddings=True)
    prefix = "transformer." if family == "gpt2" else "model."
    spec = load_spec(folder, tmp_path / "cache")
    assert spec
    whole = open_weights(spec, open_fitted(folder, tmp_path / "cache")).layer(1)
    change(folder, lambda weights: {name.removeprefix(prefix): tensor for name, tensor in weights.items()})
    opened = open_weights(spec, open_fitted(folder, tmp_path / "cache"))
    assert opened.tied
    assert opened.layer(1).qkv.numbers.equal(whole.qkv.numbers)
