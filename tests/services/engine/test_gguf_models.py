"""Whole GGUF files of several families, whose products have all types: as stored they give the bits of widened ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from driver import outcome_in_any_batch
from family_check import check_family
from gguf_files import write_gguf
from tiny_families import make_tiny_family
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.models.converter import convert_gguf

TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_1", "Q5_0", "Q3_K", "Q2_K", "IQ4_XS", "IQ4_NL", "BF16", "Q4_0", "Q5_1")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_bits_are_those_of_the_widened_weights(family: str, tmp_path: Path) -> None:
    # files of Qwen3 do not say how wide heads are to transformers, all of them have 128
    size = {"hidden_size": 256, "intermediate_size": 256, "tie_word_embeddings": True}
    heads = {"head_dim": 128, "num_attention_heads": 2} if family == "qwen3" else {"head_dim": 64}
    original = make_tiny_model(tmp_path / "original", family, 300, **size | heads)
    kinds: dict[str, str] = {}

    def kind_of(name: str) -> str:
        return kinds.setdefault(name, TYPES[len(kinds) % len(TYPES)])

    (tmp_path / "folder").mkdir()
    convert_gguf(write_gguf(original, tmp_path / "mixed.gguf", kind_of), tmp_path / "folder", tmp_path)
    found = []
    for weights in ("auto", "dtype"):
        settings = EngineSettings("cpu", "bfloat16", weights, block_size=16, kv_blocks=100, threads=2)
        engine = Engine.load(tmp_path / "folder", settings)
        if weights == "auto":
            assert sum(engine.decoder.as_stored.values()) > 0
        found.append(outcome_in_any_batch(engine, 300, (1, 7, 40)))
    assert found[0] == found[1]


def test_a_file_of_layers_with_a_state(tmp_path: Path) -> None:
    tokenizer = make_tiny_model(tmp_path / "tokenizer", vocab_size=300)
    same = {"vocab_size": 300, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True}
    original = make_tiny_family(tmp_path / "original", "lfm2", **same)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, original)
    (tmp_path / "folder").mkdir()
    convert_gguf(write_gguf(original, tmp_path / "model.gguf"), tmp_path / "folder", tmp_path)
    check_family(tmp_path / "folder", reference=original)
