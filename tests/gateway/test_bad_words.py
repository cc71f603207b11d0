"""Bad words are tokenized as in vLLM, and the parameters of a request reach the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from stack import Stack
from tiny_text import SPECIAL
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from gateway.errors import ApiError
from gateway.model import bad_word_ids
from services.text import Tokenizer


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_folder)


@pytest.fixture
def byte_level(tmp_path: Path) -> Tokenizer:
    """As in GPT-2: `the` is one token at the beginning of a text and another one after a space."""
    vocab = {piece: i for i, piece in enumerate(["Ġ", "t", "h", "e", "th", "the", "Ġthe"])}
    backend = Backend(models.BPE(vocab, [("t", "h"), ("th", "e"), ("Ġ", "the")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.load(tmp_path)


@pytest.fixture
def prepending(tmp_path: Path) -> Tokenizer:
    """As in Llama 2: a space is prepended to every text."""
    vocab = {piece: i for i, piece in enumerate(["<unk>", "▁", "c", "▁c", "▁▁c"])}
    backend = Backend(models.BPE(vocab, [("▁", "c")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    backend.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.load(tmp_path)


def test_a_word_is_banned_with_and_without_a_space_before_it(byte_level: Tokenizer) -> None:
    assert bad_word_ids(byte_level, ("the",)) == bad_word_ids(byte_level, ("  the",)) == ((5,), (6,))
    assert bad_word_ids(byte_level, ("the", " the", "eh")) == ((5,), (6,), (3, 2))


def test_a_form_with_another_number_of_tokens_is_not_banned(tiny: Tokenizer, prepending: Tokenizer) -> None:
    """After a token that is a space, the same letters are the word itself."""
    assert [len(tiny.encode(text)) for text in ("x", " x")] == [1, 2]
    assert bad_word_ids(tiny, ("x",)) == (tuple(tiny.encode("x")),)
    assert prepending.encode(" c") == [1, 3]
    assert bad_word_ids(prepending, ("c",)) == ((3,),)


def test_special_tokens_are_words_too(tiny: Tokenizer) -> None:
    assert bad_word_ids(tiny, (SPECIAL[1],)) == (tuple(tiny.encode(SPECIAL[1])),)


def test_a_word_without_tokens_is_refused(tiny: Tokenizer) -> None:
    with pytest.raises(ApiError, match="' ' has no tokens"):
        bad_word_ids(tiny, ("a", " "))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_parameters_reach_the_engine(stack: Stack, http: httpx.Client, path: str) -> None:
    said: dict[str, Any] = {
        "/v1/completions": {"prompt": "hi"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/responses": {"input": "hi"},
    }[path]
    fields: dict[str, Any] = {"bad_words": ["the"], "allowed_token_ids": [5, 3, 5], "include_stop_str_in_output": True}
    answer = http.post(path, json=said | fields | {"skip_special_tokens": False, "temperature": 0.0})
    assert answer.status_code == 200, answer.text
    sampling = stack.engine.asked[-1].sampling
    assert sampling.bad_words == bad_word_ids(stack.tokenizer, ("the",))
    assert sampling.allowed_token_ids == (5, 3)
    assert sampling.include_stop
    assert not sampling.skip_special_tokens
