"""What is kept of a model's config, and what is not imported for it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import FAMILIES
from transformers import AutoConfig

from services.engine.families.config import load_config
from services.engine.families.registry import load_spec, spec_of
from services.engine.spec import DecoderSpec
from services.errors import ModelError
from services.files import user_cache

pytestmark = pytest.mark.long

TURNS = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def config_folder(folder: Path, family: str, **changes: Any) -> Path:
    """A folder with nothing but a config."""
    AutoConfig.for_model(family, **{**FAMILIES[family], **changes}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"rope_parameters": {**TURNS, "original_max_position_embeddings": 64}}),
        ("qwen3", {}),
        ("granite", {}),
        ("gpt2", {}),
    ],
)
def test_what_is_kept_is_what_was_read(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "model", family, **changes)
    read = spec_of(load_config(folder))
    assert isinstance(read, DecoderSpec)
    assert [load_spec(folder, tmp_path) for _ in range(2)] == [read, read]
    assert len(kept(tmp_path)) == 1


def test_another_config_is_another_spec(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "model", "llama")
    before = load_spec(folder, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    after = load_spec(folder, tmp_path)
    assert before
    assert after
    assert (before.epsilon, after.epsilon) == (config["rms_norm_eps"], 0.5)


def test_a_file_that_was_torn_is_written_anew(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "model", "llama")
    spec = load_spec(folder, tmp_path)
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    assert load_spec(folder, tmp_path) == spec
    assert file.read_bytes() == whole


def test_without_a_cache_it_is_read_each_time(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "model", "llama")
    (tmp_path / "specs").write_text("no folder")
    assert load_spec(folder, tmp_path) == spec_of(load_config(folder))


def test_layers_with_a_state_are_not_on_the_fast_path(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "model", "qwen3", layer_types=["linear_attention", "full_attention"])
    assert load_spec(folder, tmp_path) is None


def test_what_is_refused_stays_refused(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "model", "qwen3", layer_types=["indexed_attention"] * 2)
    for _ in range(2):
        with pytest.raises(ModelError, match="indexed_attention"):
            load_spec(folder, tmp_path)


def kept(cache: Path) -> list[Path]:
    return list((cache / "specs").iterdir())


START = """
import sys
from pathlib import Path
from services.engine.engine import Engine
from services.engine.preload import preload
from services.engine.settings import EngineSettings
from services.engine.startup.proof import ahead, verdict

folder, settings = Path(sys.argv[1]), EngineSettings("cpu", "float32", cache_dir=Path(sys.argv[2]), kv_blocks=8)
verdict.run_trial = None
if sys.argv[3] == "later":
    ahead.subprocess = None
preload(folder, settings)
Engine.load(folder, settings)
imported = {"transformers", "torch._dynamo", "llguidance"} & sys.modules.keys()
assert not imported, imported
"""


def test_no_start_imports_transformers_or_llguidance(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Importing transformers takes seconds and 100 MB: at the first start, one other process does it. llguidance is for
    grammars alone."""
    (tmp_path / "kernels").mkdir()
    for library in (user_cache() / "kernels").glob("*.so"):  # compiling them takes longer
        os.link(library, tmp_path / "kernels" / library.name)
    for start in ("first", "later"):
        command = [sys.executable, "-c", START, tiny_model("llama"), tmp_path, start]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[4])
