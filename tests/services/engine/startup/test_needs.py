"""What an engine takes of the memory is known before it loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from tiny_wholes import make_whole

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup.needs import needed
from services.errors import ModelError

GIB = 1 << 30


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "mixtral"])
@pytest.mark.parametrize(
    "values",
    [
        {"kv_blocks": 4096},
        {"kv_blocks": 0, "memory": 2 * GIB, "kv_memory_fraction": 0.01},
        {"kv_cache_dtype": "bfloat16"},
    ],
)
def test_an_engine_takes_about_what_was_computed(family: str, values: dict[str, object], tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", family, max_position_embeddings=64)
    settings = EngineSettings(device="cpu", dtype="float32", threads=1, **{"kv_blocks": 64} | values)  # type: ignore[arg-type]
    computed = needed(model, settings, 2 * GIB) - settings.beside_model
    engine = Engine.load(model, settings)
    assert 0.9 * engine.memory < computed < 1.2 * engine.memory


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl"])
def test_the_part_of_a_model_that_reads_pictures_takes_nothing(kind: str, tmp_path: Path) -> None:
    folder = make_whole(tmp_path, kind)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"vision_tower.large": torch.zeros(1 << 22)}, folder / "model.safetensors", {"format": "pt"})
    settings = EngineSettings(device="cpu", dtype="float32", threads=1, kv_blocks=64)
    computed = needed(folder, settings, 2 * GIB) - settings.beside_model
    engine = Engine.load(folder, settings)
    assert 0.9 * engine.memory < computed < 1.2 * engine.memory


def test_a_model_that_does_not_fit_alone_is_refused(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    settings = EngineSettings("cpu", "float32", memory=GIB + (16 << 20), kv_blocks=4096)
    with pytest.raises(ModelError, match=r"memory=1\.02 GiB: an engine of model takes 1\.03 GiB alone"):
        needed(model, settings, settings.memory)
