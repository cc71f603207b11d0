"""The bound is at most the real number of tokens, for all kinds of tokenizers that have a bound."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.text.length_bound import LengthBound

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def _byte_level(vocab: list[str], normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocab)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<the end>", special=True)])
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer


def _bound(tokenizer: Tokenizer) -> LengthBound | None:
    return LengthBound.of(json.loads(tokenizer.to_str()), len("<the end>"))


BOUNDED = {
    "byte level": _byte_level(ALPHABET),
    "composed": _byte_level(ALPHABET, normalizers.NFC()),
    "without some controls": _byte_level([c for c in ALPHABET if c not in "ĄĆ"]),
}
UNBOUNDED = {
    "strips accents": _byte_level(ALPHABET, normalizers.StripAccents()),
    "knows few bytes": _byte_level(ALPHABET[:40]),
}


@pytest.mark.parametrize("name", BOUNDED)
@given(text=st.text() | st.text("a \x04\x06ᾂ\u0313\u0300\u0345α<theEnd>", max_size=60))
def test_a_text_has_at_least_as_many_tokens_as_the_bound(name: str, text: str) -> None:
    tokenizer = BOUNDED[name]
    bound = _bound(tokenizer)
    assert bound is not None
    assert bound.least_tokens(text) <= len(tokenizer.encode(text).ids)
    assert bound.least_tokens(100 * bound.longest * "a") == 100


@pytest.mark.parametrize("name", UNBOUNDED)
def test_there_is_no_bound_if_parts_of_a_text_are_left_out(name: str) -> None:
    assert _bound(UNBOUNDED[name]) is None
