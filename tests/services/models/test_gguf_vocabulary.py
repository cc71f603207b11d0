"""Vocabularies of GGUF files: the ids of llama.cpp, and the tokens that end an answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

from services.errors import ModelError
from services.models.gguf_vocabulary import SPLITTERS, Vocabulary
from services.text import Tokenizer

RECORDED = json.loads((Path(__file__).parent / "llama_cpp_tokens.json").read_text(encoding="utf-8"))


def read(metadata: dict[str, Any]) -> Vocabulary:
    return Vocabulary.read(
        {f"tokenizer.{name}": SimpleNamespace(contents=lambda value=value: value) for name, value in metadata.items()}
    )


def small(tokens: list[str], **metadata: Any) -> Vocabulary:
    """Byte pairs whose last `tokens` are control tokens."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    given = {f"ggml.{name}": value for name, value in metadata.items()}
    pieces = [*sorted(alphabet), *tokens]
    types = [1] * len(alphabet) + [3] * len(tokens)
    return read(
        {"ggml.model": "gpt2", "ggml.pre": "gpt-2", "ggml.tokens": pieces, "ggml.merges": [], "ggml.token_type": types}
        | given
    )


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: next(iter(case["metadata"][0].values()), "none"))
def test_ids_and_ends_are_those_of_llama_cpp(case: dict[str, Any], tmp_path: Path) -> None:
    for metadata in case["metadata"]:
        vocabulary = read(RECORDED["vocabularies"][case["vocabulary"]] | metadata)
        vocabulary.save(tmp_path, 128)
        tokenizer = Tokenizer.load(tmp_path)
        assert tokenizer.encode_batch(RECORDED["texts"][case["vocabulary"]]) == case["ids"], metadata
        assert sorted(vocabulary.ends) == case["ends"]
        assert (vocabulary.warning is not None) == (case["vocabulary"] == "bytes" and not metadata)


def test_each_expression_can_be_read(tmp_path: Path) -> None:
    for name in SPLITTERS:
        small(["<s>"], pre=name, bos_token_id=256).save(tmp_path, 128)
        assert Tokenizer.load(tmp_path).decode(Tokenizer.load(tmp_path).encode("aé 12\n\n!")) != ""


def test_an_unknown_splitter_is_refused_with_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"in the way 'foo'.*gguf-new-metadata --pre-tokenizer NAME"):
        small([], pre="foo")


@pytest.mark.parametrize(
    ("tokens", "ids", "ends"),
    [
        (["<x>", "<|end|>"], {"eos_token_id": 256}, ["<x>", "<|end|>"]),
        (["<x>", "<y>", "<z>"], {"eot_token_id": 257, "eom_token_id": 258}, ["<y>", "<z>"]),
        (["<x>", "<|im_end|>", "<|endoftext|>"], {"eos_token_id": 9999}, ["<|im_end|>", "<|endoftext|>"]),
        (["<x>"], {}, []),
        (["<|end|>", "<|call|>", "<|return|>"], {"eos_token_id": 258}, ["<|return|>", "<|call|>"]),
        (["</s>", "<|tool_response>", "<turn|>"], {}, ["<|tool_response>", "<turn|>"]),
    ],
)
def test_ends_are_known_by_id_and_by_name(tokens: list[str], ids: dict[str, int], ends: list[str]) -> None:
    vocabulary = small(tokens, **ids)
    assert [vocabulary.pieces[id] for id in vocabulary.ends] == ends


def test_a_bos_that_is_wanted_and_not_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its add_bos_token is true, but it names no bos_token_id"):
        small(["<s>"], add_bos_token=True).save(tmp_path, 128)


def test_spaces_behind_the_role_marks_of_phi_3_belong_to_them(tmp_path: Path) -> None:
    fields = {"general.name": SimpleNamespace(contents=lambda: "Phi-3 mini")}
    metadata = RECORDED["vocabularies"]["sentencepiece"]
    fields |= {
        f"tokenizer.{name}": SimpleNamespace(contents=lambda value=value: value) for name, value in metadata.items()
    }
    Vocabulary.read(fields).save(tmp_path, 128)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("<turn>\n  a") == tokenizer.encode("<turn>a")


def test_templates_with_names(tmp_path: Path) -> None:
    templates = {"chat_template": "plain", "chat_template.tool_use": "tools"}
    read(RECORDED["vocabularies"]["sentencepiece"] | templates).save(tmp_path, 128)
    config = Tokenizer.load(tmp_path).config
    assert (config.chat_template, config.tool_template) == ("plain", "tools")
