"""Whole GGUF files: tiny ones of several families, whose products have all types, and a published one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from driver import Driver, Job, outcome_in_any_batch
from family_check import check_family
from real_gguf import real_gguf
from tiny_families import make_tiny_family
from tiny_models import make_tiny_model

from load.gguf_files import write_gguf
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.files import user_cache
from services.models import resolve
from services.models.converter import convert_gguf
from services.requests import SamplingParams
from services.text import Tokenizer

TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_1", "Q5_0", "Q3_K", "Q2_K", "IQ4_XS", "IQ4_NL", "BF16", "Q4_0", "Q5_1")
# what llama.cpp b9190 makes of the published file: a prompt's ids, and the greedy tokens up to the first one whose log
# probability is less than 0.1 above the next: llama.cpp rounds the inputs of products to 8 bits and may take the other
LLAMA_CPP = {
    "The capital of France is": (
        [2, 818, 5279, 529, 7001, 563],
        [506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506],
    ),
    "def fibonacci(n):\n": (
        [2, 2063, 10779, 78113, 236769, 236749, 1473, 107],
        [
            140,
            584,
            538,
            1251,
            236743,
            236771,
            236787,
            107,
            144,
            2060,
            236743,
            236771,
            107,
            140,
            36208,
            538,
            1251,
            236743,
            236770,
            236787,
        ],
    ),
    "Water boils at": (
        [2, 17390, 104264, 657],
        [
            236743,
            236770,
            236771,
            236771,
            10674,
            57356,
            236761,
            108,
            17390,
            104264,
            657,
            236743,
            236770,
            236771,
            236771,
            10674,
            57356,
            236761,
            108,
            17390,
        ],
    ),
    "The three primary colors are": (
        [2, 818, 1806, 5905, 7913, 659],
        [2604, 236764, 3730, 236764, 532, 7070, 236761, 108, 818],
    ),
}


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


def test_a_published_file_continues_as_in_llama_cpp() -> None:
    """K-quants of another family than the default model's, with SentencePiece and windows of attention."""
    folder = resolve(str(real_gguf()), user_cache())
    tokenizer = Tokenizer.load(folder)
    assert [tokenizer.encode(text) for text in LLAMA_CPP] == [prompt for prompt, _ in LLAMA_CPP.values()]
    engine = Engine.load(folder, EngineSettings("cpu", "float32", "auto", block_size=16, kv_blocks=100, threads=2))
    assert engine.decoder.as_stored
    assert all(engine.decoder.as_stored.values())
    jobs = [
        Job(f"{i}/0", prompt, SamplingParams(max_new_tokens=len(expected), temperature=0.0))
        for i, (prompt, expected) in enumerate(LLAMA_CPP.values())
    ]
    assert [job.output for job in Driver(engine).run(jobs)] == [expected for _, expected in LLAMA_CPP.values()]
