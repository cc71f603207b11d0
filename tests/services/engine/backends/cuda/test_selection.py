"""Where the CUDA backend is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from services.engine.families.config import load_config
from services.engine.families.registry import FAMILIES, spec_of
from services.engine.settings import EngineSettings
from services.engine.startup import devices, loading


def test_layers_without_triton_kernels_are_transformers_own(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("mistral")
    decoder = loading.fast_path_spec(folder, EngineSettings())
    assert decoder
    encoder = replace(decoder, both_ways=True)
    for device, found in (("cpu", encoder), ("cuda", None)):
        monkeypatch.setattr(devices, "choose_device", lambda settings, device=device: torch.device(device))
        monkeypatch.setattr(loading, "load_spec", lambda *args: decoder)
        assert loading.fast_path_spec(folder, EngineSettings()) == decoder
        monkeypatch.setattr(loading, "load_spec", lambda *args: encoder)
        assert loading.fast_path_spec(folder, EngineSettings()) == found


def test_every_family_of_decoders_has_triton_kernels(tiny_model: Callable[[str], Path]) -> None:
    specs = {family: spec_of(load_config(tiny_model(family))) for family in FAMILIES}
    assert [family for family, spec in specs.items() if not (spec and spec.runs_on_cuda)] == []
