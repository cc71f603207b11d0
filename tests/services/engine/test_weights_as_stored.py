"""Weights that run as a GGUF file stores them give the bits of the same weights widened to bfloat16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from blocks_folder import keep_in_blocks
from driver import outcome_in_any_batch
from safetensors.torch import load_file
from tiny_models import make_tiny_model

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.stock.loading import read_model
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.weights.description import tensor_bytes
from services.engine.weights.tensors import Checkpoint

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=100, threads=2)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One with blocks, and one with the same numbers. Some products have inputs that fill no whole panel."""
    size = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    made = tmp_path_factory.mktemp("stored") / "tiny"
    make_tiny_model(made, "llama", 201, with_tokenizer=False, tie_word_embeddings=request.param, **size)
    return made, keep_in_blocks(made)


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, dtype="bfloat16")], ids=["float32", "bfloat16"])
def test_bits_are_those_of_the_widened_weights(folders: tuple[Path, Path], settings: EngineSettings) -> None:
    folder, numbers = folders
    found = []
    variants: list[tuple[Path, Literal["auto", "dtype"]]] = [(folder, "auto"), (folder, "dtype"), (numbers, "auto")]
    for source, weights in variants:
        engine = Engine.load(source, replace(settings, weights=weights))
        assert isinstance(engine.decoder, CpuDecoder)
        output = engine.decoder._packed.layers[0].output
        assert output.kind.name.startswith("GROUPS") == (weights == "auto" and source == folder)
        assert output.panels.nbytes == output.inputs * output.outputs * engine.decoder.weight_bytes
        numerics = engine.figures.numerics.partition(" ")[2]  # without the revision of the folder
        found.append((outcome_in_any_batch(engine, 201, (1, 5, 40, 90)), numerics))
    assert found[0] == found[1] == found[2]


def test_the_embedding_is_kept_once(folders: tuple[Path, Path]) -> None:
    engine = Engine.load(folders[0], SETTINGS)
    assert isinstance(engine.decoder, CpuDecoder)
    packed = engine.decoder._packed
    assert packed.embedding
    assert packed.vocabulary
    rows, tied = packed.embedding.rows, "lm_head.weight" not in Checkpoint(folders[0])
    assert not isinstance(rows, torch.Tensor)
    assert (rows is packed.vocabulary) == tied
    layers = tensor_bytes(packed.layers, packed.last_norm)
    assert engine.decoder.memory == layers + packed.vocabulary.panels.nbytes + (0 if tied else rows.panels.nbytes)


def test_transformers_layers_get_the_same_numbers(folders: tuple[Path, Path]) -> None:
    found, expected = (read_model(each, torch.bfloat16).state_dict() for each in folders)
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
