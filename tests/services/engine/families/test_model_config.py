"""What the engine does not do is refused when a model is loaded, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_tiny_model
from transformers import AutoConfig

from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.settings import EngineSettings
from services.engine.startup.loading import check_settings
from services.errors import ModelError, SettingsError

CPU = EngineSettings(device="cpu", dtype="float32", kv_blocks=8, threads=1)


@pytest.mark.parametrize(
    ("family", "config", "named"),
    [
        ("bloom", {}, "cannot be replaced"),
        ("falcon", {}, "cannot be replaced"),
        ("gptj", {}, "cannot be replaced"),
        ("bert", {}, "an attention mask of its own"),
        ("llama", {"layer_types": ["indexed_attention"] * 2}, "layers of type indexed_attention"),
    ],
)
def test_unsupported_attention_is_refused(family: str, config: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, family, 64, with_tokenizer=False, **config)
    with pytest.raises(ModelError, match=named):
        Engine.load(folder, CPU)


def test_models_with_an_encoder_and_a_decoder_are_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("t5").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="t5: models with an encoder and a decoder"):
        load_config(tmp_path)


def test_what_transformers_says_of_a_config_is_one_line_with_the_folder(tmp_path: Path) -> None:
    """Of an exception in an actor, users see the last line."""
    (tmp_path / "config.json").write_text('{"model_type": "foo"}')
    with pytest.raises(ModelError) as raised:
        load_config(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path} holds no model that transformers can read: ")
    assert "`foo`" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, vocab_size=64, with_tokenizer=False)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        Engine.load(folder, CPU)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        Engine.load(tmp_path, CPU)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (EngineSettings(device="cpu", max_model_len=257), "max_model_len=257"),
        (EngineSettings(device="cpu", dtype="float16"), "float16"),
        (EngineSettings(device="cpu", fast_path=False, batch_invariant=True), "batch_invariant"),
        (EngineSettings(device="cpu", kv_memory_fraction=1e-12), "kv_memory_fraction"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: EngineSettings, named: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, vocab_size=64, with_tokenizer=False)
    with pytest.raises(SettingsError, match=named):
        Engine.load(folder, settings)


@pytest.mark.parametrize(
    "asked", [{"weights": "int8"}, {"kv_cache_dtype": "int8_per_token_head"}, {"batch_invariant": True}, {"tp": 2}]
)
def test_what_only_the_fast_path_has_is_refused_for_other_models(asked: dict[str, Any], tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "lfm2", with_tokenizer=False)
    with pytest.raises(SettingsError, match=rf"^{next(iter(asked))}.* served on the fast path only, which \w+"):
        check_settings(folder, EngineSettings("cpu", **asked))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no CUDA device"):
        Engine.load(tmp_path, EngineSettings(device="cuda"))
