"""Weights that run as a GGUF file stores them give the bits of the same weights widened to bfloat16."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from driver import outcome_in_any_batch
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.stock.loading import read_model
from services.engine.engine import Engine
from services.engine.families.tensors import Checkpoint
from services.engine.settings import EngineSettings
from services.models.contents import BLOCKS

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=100, threads=2)
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # those that the package gguf can write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the converter writes it: each product in another format, one with inputs that fill no group. Beside
    it, `numbers` has the same weights as safetensors alone."""
    size = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    made = make_tiny_model(tmp_path_factory.mktemp("stored") / "tiny", "llama", 201, with_tokenizer=False, **size)
    weights, blocks, kinds = load_file(made / "model.safetensors"), {}, {}
    for i, (name, weight) in enumerate(sorted(weights.items())):
        if weight.ndim == 2:
            kind = gguf.GGMLQuantizationType[KINDS[i % len(KINDS)]]
            rows = gguf.quantize(weight.float().numpy(), kind)
            blocks[name], kinds[name] = torch.from_numpy(rows), kind.name
            weights[name] = torch.from_numpy(gguf.dequantize(rows, kind)).bfloat16()
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    numbers = shutil.copytree(made, made.with_name("numbers"))
    save_file(weights, numbers / "model.safetensors", {"format": "pt"})
    others = {name: weight for name, weight in weights.items() if name not in blocks}
    save_file(others, made / "model.safetensors", {"format": "pt"})
    save_file(blocks, made / BLOCKS, kinds)
    return made


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, dtype="bfloat16")], ids=["float32", "bfloat16"])
def test_bits_are_those_of_the_widened_weights(folder: Path, settings: EngineSettings) -> None:
    found = []
    for source, weights in ((folder, "auto"), (folder, "dtype"), (folder.with_name("numbers"), "auto")):
        engine = Engine.load(source, replace(settings, weights=weights))
        assert isinstance(engine.decoder, CpuDecoder)
        output = engine.decoder._packed.layers[0].output
        assert output.kind.name.startswith("GROUPS") == (weights == "auto" and source == folder)
        assert output.panels.nbytes == output.inputs * output.outputs * engine.decoder.weight_bytes
        numerics = engine.figures.numerics.partition(" ")[2]  # without the revision of the folder
        found.append((outcome_in_any_batch(engine, 201, (1, 5, 40, 90)), numerics))
    assert found[0] == found[1] == found[2]


def test_transformers_layers_get_the_same_numbers(folder: Path) -> None:
    found, expected = (read_model(each, torch.bfloat16).state_dict() for each in (folder, folder.with_name("numbers")))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_the_default_model_keeps_all_products_as_they_are_stored(default_model: Path) -> None:
    numbers = load_file(default_model / "model.safetensors")
    assert {weight.ndim for weight in numbers.values()} == {1}
    stored = Checkpoint(default_model, as_stored=True)
    assert set(stored.names) == stored.groups.keys() | numbers.keys()
    for name in sorted(stored.groups)[::30]:
        weight = stored.weight(name)
        assert not isinstance(weight, torch.Tensor)
        assert torch.equal(weight.dequantize(), stored.read(name))
