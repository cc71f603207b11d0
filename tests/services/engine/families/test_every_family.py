"""Every family that is served, as a tiny random model, and what is refused: `make families`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from families_table import DOCUMENT, backend, features, written
from family_check import STOCK, check_family
from tiny_families import LONG_ROPE, LONGEST_SHORT, TESTED, make_tiny_family, small_config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from unserved_families import REFUSED, UNTESTED

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.errors import ModelError

# the kinds of layers and features that the others combine, and test_families.py lacks
SAMPLE = ["llama4_text", "nemotron_h", "phi3", "qwen3_5_text"]
REFUSED_SAMPLE = ["diffllama", "doge"]


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, str]]:
    """By family, the features of what passed. With ORCA_FAMILIES set, docs/models.md gets its tables from them."""
    found: dict[str, str] = {}
    yield found
    if os.environ.get("ORCA_FAMILIES") and found.keys() == TESTED.keys():
        DOCUMENT.write_text(written(DOCUMENT.read_text(), found))


def check(family: str, folder: Path) -> Engine:
    make_tiny_family(folder, family)
    return check_family(folder, shortest=LONGEST_SHORT + 1)


@pytest.mark.parametrize("family", SAMPLE)
def test_a_sample_of_families(family: str, tmp_path: Path) -> None:
    check(family, tmp_path)


@pytest.mark.families
@pytest.mark.parametrize("family", TESTED)
def test_each_family(family: str, tmp_path: Path, rows: dict[str, str]) -> None:
    rows[family] = features(check(family, tmp_path), tmp_path)


@pytest.mark.families
def test_short_requests_of_longrope(tmp_path: Path) -> None:
    """If no request is longer than the original length, all have the short factors."""
    rope = {**LONG_ROPE, "original_max_position_embeddings": 64}
    make_tiny_family(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=64)
    check_family(tmp_path, replace(STOCK, max_model_len=64))


@pytest.mark.families
def test_dynamic_rotary_embeddings(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    make_tiny_family(tmp_path, "llama", rope_parameters=rope)
    check_family(tmp_path)


@pytest.mark.parametrize(
    "family", [pytest.param(one, marks=[] if one in REFUSED_SAMPLE else pytest.mark.families) for one in REFUSED]
)
def test_what_is_refused_is_named(family: str, tmp_path: Path) -> None:
    config, named = REFUSED[family]
    make_tiny_family(tmp_path, family, **config)
    with pytest.raises(ModelError, match=re.escape(named)):
        Engine.load(tmp_path, EngineSettings("cpu", "float32", kv_blocks=8, threads=1))


def test_each_family_of_transformers_is_tested_refused_or_untested_by_name() -> None:
    """A release of transformers may bring a family that loads and is wrong: it has to be put into one of the three."""
    known = [*TESTED, *REFUSED, *UNTESTED]
    assert len(known) == len(set(known))
    assert set(known) == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_the_tables_are_those_of_the_code() -> None:
    """But for features, which a model that is loaded shows."""
    document = DOCUMENT.read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ((?:CPU|CPU and CUDA|stock) \| .*?) ?\|$", document, re.MULTILINE))
    assert rows.keys() == TESTED.keys()
    made = {family: f"{backend(small_config(family))} | {row.partition(' | ')[2]}" for family, row in rows.items()}
    assert written(document, made) == document
