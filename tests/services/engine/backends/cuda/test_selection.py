"""Where the CUDA backend is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import make_tiny_model

pytest.importorskip("triton")

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
