"""Weights that run as a GGUF file stores them give the bits of the same weights widened to bfloat16."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from driver import outcome_in_any_batch
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.engine.families.tensors import Checkpoint
from services.engine.settings import EngineSettings
from services.models.contents import BLOCKS

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=100, threads=2)
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # those that the package gguf can write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the converter writes it: each product in another format, one with inputs that fill no group."""
    size = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    made = make_tiny_model(tmp_path_factory.mktemp("stored"), "llama", 201, with_tokenizer=False, **size)
    weights, blocks, kinds = load_file(made / "model.safetensors"), {}, {}
    for i, (name, weight) in enumerate(sorted(weights.items())):
        if weight.ndim == 2:
            kind = gguf.GGMLQuantizationType[KINDS[i % len(KINDS)]]
            rows = gguf.quantize(weight.float().numpy(), kind)
            blocks[name], kinds[name] = torch.from_numpy(rows), kind.name
            weights[name] = torch.from_numpy(gguf.dequantize(rows, kind)).bfloat16()
    save_file(weights, made / "model.safetensors", {"format": "pt"})
    save_file(blocks, made / BLOCKS, kinds)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    return made


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, dtype="bfloat16")], ids=["float32", "bfloat16"])
def test_bits_are_those_of_the_widened_weights(folder: Path, settings: EngineSettings) -> None:
    found = []
    variants: list[EngineSettings] = [replace(settings, weights="auto"), replace(settings, weights="dtype")]
    for variant in variants:
        engine = Engine.load(folder, variant)
        assert isinstance(engine.decoder, CpuDecoder)
        output = engine.decoder._packed.layers[0].output
        assert output.kind.name.startswith("GROUPS") == (variant.weights == "auto")
        assert output.panels.nbytes == output.inputs * output.outputs * engine.decoder.weight_bytes
        found.append((outcome_in_any_batch(engine, 201, (1, 5, 40, 90)), engine.figures.numerics))
    assert found[0] == found[1]


def test_the_default_model_keeps_all_products_as_they_are_stored(default_model: Path) -> None:
    stored = Checkpoint(default_model, as_stored=True)
    products = [name for name, weight in load_file(default_model / "model.safetensors").items() if weight.ndim == 2]
    assert set(products) == set(stored.groups)
    for name in products[::30]:
        weight = stored.weight(name)
        assert not isinstance(weight, torch.Tensor)
        assert torch.equal(weight.dequantize(), stored.read(name))
