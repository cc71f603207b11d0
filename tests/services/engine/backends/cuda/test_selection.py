"""Where the CUDA backend is chosen, and that the log says that no GPU has run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from services.engine.backends.cuda import decoder
from services.engine.families.config import load_config
from services.engine.families.registry import FAMILIES, spec_of
from services.engine.settings import EngineSettings
from services.engine.startup import devices, loading


def test_layers_without_triton_kernels_are_transformers_own(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("mistral")
    decoder_spec = loading.fast_path_spec(folder, EngineSettings())
    assert decoder_spec
    encoder_spec = replace(decoder_spec, both_ways=True)
    for device, found in (("cpu", encoder_spec), ("cuda", None)):
        monkeypatch.setattr(devices, "choose_device", lambda settings, device=device: torch.device(device))
        monkeypatch.setattr(loading, "load_spec", lambda *args: decoder_spec)
        assert loading.fast_path_spec(folder, EngineSettings()) is decoder_spec
        monkeypatch.setattr(loading, "load_spec", lambda *args: encoder_spec)
        assert loading.fast_path_spec(folder, EngineSettings()) is found


def test_every_family_of_decoders_has_triton_kernels(tiny_model: Callable[[str], Path]) -> None:
    specs = {family: spec_of(load_config(tiny_model(family))) for family in FAMILIES}
    assert [family for family, spec in specs.items() if not (spec and spec.runs_on_cuda)] == []


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
