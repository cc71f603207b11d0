"""For the first start of a model, one process imports transformers: a converter that goes on, or another one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from marked import full
from tiny_models import make_tiny_model

from load.gguf_files import write_gguf
from services.engine.families import fit, registry
from services.engine.families.kept import is_kept
from services.engine.settings import EngineSettings
from services.engine.startup.proof import ahead, verdict
from services.engine.startup.proof.ahead import make_what_is_not_kept, start_ahead
from services.engine.startup.proof.verdict import proven
from services.files import user_cache
from services.models.convert import more_work
from services.models.resolve import resolve

PATIENCE = 120.0  # seconds


@pytest.mark.parametrize("kind", ["GGUF file", *full(["folder"])])
def test_one_process_makes_what_an_engine_asks_for(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the converter, if there is one."""
    model = make_tiny_model(tmp_path / "model")
    if kind == "GGUF file":
        model = write_gguf(model, tmp_path / "model.gguf")
    settings = EngineSettings("cpu", "float32", kv_blocks=64, cache_dir=tmp_path / "cache")
    (settings.cache_dir / "kernels").mkdir(parents=True)
    for library in (user_cache() / "kernels").glob("*.so"):
        os.link(library, settings.cache_dir / "kernels" / library.name)
    with more_work() as converters:
        folder = resolve(str(model), settings.cache_dir)
        assert len(converters) == (kind == "GGUF file")
        assert not is_kept(folder, settings.cache_dir)
        start_ahead(folder, settings, converters)
    for converter in converters:
        assert converter.wait(PATIENCE) == 0
    make_what_is_not_kept(folder, settings)  # waits for a process of its own
    for module, name in ((verdict, "run_trial"), (fit, "_fit"), (registry, "spec_of"), (ahead, "_run_process")):
        monkeypatch.setattr(module, name, None)  # what the process kept is enough
    make_what_is_not_kept(folder, settings)
    proven.cache_clear()
    assert proven(folder, settings) == settings


def test_a_converter_without_more_work_reads_the_end_of_its_input() -> None:
    with more_work() as converters:
        converters.append(subprocess.Popen("cat", stdin=subprocess.PIPE, text=True))
    assert converters[0].wait(PATIENCE) == 0
