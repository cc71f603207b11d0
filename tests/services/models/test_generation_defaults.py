"""Sampling defaults of a model, read as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from services.errors import ModelError
from services.models.generation import SamplingDefaults

SAMPLING = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05}


def write(folder: Path, config: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "config",
    [
        {},
        SAMPLING | {"do_sample": True, "max_new_tokens": 77, "eos_token_id": [1, 2], "pad_token_id": 0},
        {"do_sample": True, "top_k": 50, "temperature": 1.0},  # transformers' own defaults, written down
        {"temperature": None, "top_k": 0, "max_length": 20},
    ],
)
def test_the_values_are_those_that_transformers_reads(config: dict[str, Any], tmp_path: Path) -> None:
    theirs = GenerationConfig.from_pretrained(write(tmp_path, config))
    ours = SamplingDefaults.load(tmp_path)
    names = (*SAMPLING, "max_new_tokens")
    assert {name: getattr(ours, name) for name in names} == {name: getattr(theirs, name) for name in names}


def test_a_file_of_transformers_is_read(tmp_path: Path) -> None:
    GenerationConfig(do_sample=True, **SAMPLING).save_pretrained(tmp_path)
    assert SamplingDefaults.load(tmp_path).given() == SAMPLING


def test_without_a_file_or_with_vllm_there_are_none(tmp_path: Path) -> None:
    assert SamplingDefaults.load(tmp_path) == SamplingDefaults()
    assert SamplingDefaults.load(write(tmp_path, SAMPLING), "vllm") == SamplingDefaults()
    assert str(SamplingDefaults.load(tmp_path)) == (
        "temperature 0.6, top_p 0.95, top_k 20, min_p 0.05, repetition_penalty 1.05"
    )


def test_overriding_values_go_first(tmp_path: Path) -> None:
    own = {"temperature": 0, "top_k": -1, "max_new_tokens": 5}
    assert SamplingDefaults.load(write(tmp_path, SAMPLING), "vllm", own).given() == own | {"top_k": 0}
    assert SamplingDefaults.load(tmp_path, "auto", own).given() == SAMPLING | own | {"top_k": 0}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"temperature": 3}, "temperature must be a number from 0 to 2, not 3"),
        ({"temperature": "1"}, "temperature must be a number from 0 to 2, not '1'"),
        ({"top_p": 0}, "top_p must be a number from 0 to 1, not 0"),
        ({"top_k": 1.5}, "top_k must be a whole number from -1"),
        ({"top_k": True}, "top_k must be a whole number"),
        ({"min_p": float("nan")}, "min_p must be a number from 0 to 1"),
        ({"repetition_penalty": 0}, r"repetition_penalty must be a number from 0\.01 to 10"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, not 0"),
        ([], "holds list, not an object"),
    ],
)
def test_a_wrong_value_is_named(config: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"generation_config\.json.*{why}"):
        SamplingDefaults.load(write(tmp_path, config))


def test_a_wrong_value_of_a_file_in_place_of_the_model_s_is_that_of_the_setting(tmp_path: Path) -> None:
    """The file in the folder is a copy in the cache, which the user has not written."""
    with pytest.raises(ModelError, match=r"^generation_config: temperature must be"):
        SamplingDefaults.load(write(tmp_path, {"temperature": 3}), '{"temperature": 3}')


def test_an_unknown_override_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="override_generation_config: num_beams is none of temperature, top_p"):
        SamplingDefaults.load(tmp_path, "auto", {"num_beams": 2})
