"""A converter that is kept after its work does more: it has imported transformers."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from gguf_files import write_gguf
from tiny_models import make_tiny_model

from services.engine.families import fit, registry
from services.engine.settings import EngineSettings
from services.engine.startup.proof import verdict
from services.engine.startup.proof.verdict import proven
from services.files import user_cache
from services.models.convert import go_on, more_work
from services.models.resolve import resolve

PATIENCE = 120.0  # seconds


def test_a_converter_tries_the_fast_path_before_an_engine_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(make_tiny_model(tmp_path / "model"), tmp_path / "model.gguf")
    settings = EngineSettings("cpu", "float32", kv_blocks=64, cache_dir=tmp_path / "cache")
    (settings.cache_dir / "kernels").mkdir(parents=True)
    for library in (user_cache() / "kernels").glob("*.so"):
        os.link(library, settings.cache_dir / "kernels" / library.name)
    with more_work() as converters:
        folder = resolve(str(file), settings.cache_dir)
        (converter,) = converters
        written = json.dumps(asdict(settings), default=str)
        go_on(converter, "services.engine.startup.proof.ahead", str(folder), written)
    assert converter.wait(PATIENCE) == 0
    for module, name in ((verdict, "run_trial"), (fit, "_fit"), (registry, "spec_of")):
        monkeypatch.setattr(module, name, None)  # what the converter kept is enough
    proven.cache_clear()
    assert proven(folder, settings) == settings


def test_a_converter_without_more_work_reads_the_end_of_its_input() -> None:
    with more_work() as converters:
        converters.append(subprocess.Popen("cat", stdin=subprocess.PIPE, text=True))
    assert converters[0].wait(PATIENCE) == 0
