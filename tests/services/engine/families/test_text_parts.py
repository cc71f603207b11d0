"""The text part of a model that reads pictures too is served as the text model that it is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from family_check import STOCK, check_family
from marked import full
from safetensors.torch import load_file, save_file
from tiny_wholes import WHOLES, make_whole
from transformers import AutoModelForImageTextToText

REPEATED = ["llava_next", "llava_onevision", "aya_vision", "idefics3", "gemma4_unified", "qwen2_vl"]  # names of others


@pytest.mark.parametrize("kind", [*(kind for kind in WHOLES if kind not in REPEATED), *full(REPEATED)])
def test_tokens_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    engine = check_family(
        make_whole(tmp_path, kind), replace(STOCK, fast_path=True), models=AutoModelForImageTextToText
    )
    assert engine.figures.numerics.endswith("native")


@pytest.mark.parametrize(("kind", "tied"), [("qwen2_5_vl", True), *full([("llava", True), ("gemma3", False)])])
def test_on_transformers_layers(kind: str, tied: bool, tmp_path: Path) -> None:
    check_family(make_whole(tmp_path, kind, tied), STOCK, models=AutoModelForImageTextToText)


@pytest.mark.parametrize("fast_path", [True, False])
def test_names_of_newer_checkpoints(fast_path: bool, tmp_path: Path) -> None:
    file = make_whole(tmp_path, "llava") / "model.safetensors"
    tensors = load_file(file)
    places = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
    newer = {re.sub("|".join(places), lambda found: places[found[0]], name): each for name, each in tensors.items()}
    assert newer.keys() != tensors.keys()
    save_file(newer, file, {"format": "pt"})
    check_family(tmp_path, replace(STOCK, fast_path=fast_path), models=AutoModelForImageTextToText)
