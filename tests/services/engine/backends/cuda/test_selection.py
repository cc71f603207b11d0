"""Where the CUDA backend is chosen, and that the log says that no GPU has run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import make_tiny_model

pytest.importorskip("triton")

from services.engine.backends.cuda import decoder
from services.engine.families.config import load_config
from services.engine.families.registry import spec_of
from services.engine.settings import EngineSettings
from services.engine.startup import devices, loading


def test_layers_without_triton_kernels_are_transformers_own(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windowed = make_tiny_model(tmp_path, "mistral", with_tokenizer=False, sliding_window=8)
    settings = EngineSettings()
    assert loading.fast_path_spec(windowed, settings)
    monkeypatch.setattr(devices, "choose_device", lambda settings: torch.device("cuda"))
    assert loading.fast_path_spec(windowed, settings) is None
    assert loading.fast_path_spec(tiny_model("mistral"), settings)


def test_the_log_says_what_has_not_run(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(devices, "choose_device", lambda settings: torch.device("cuda"))
    monkeypatch.setattr(decoder, "CudaDecoder", lambda setup, layout: (setup, layout))
    folder = tiny_model("llama")
    spec = spec_of(load_config(folder))
    assert spec
    loading.load_fast(spec, folder, EngineSettings(), 64)
    assert "no GPU has run the CUDA backend yet" in caplog.text
