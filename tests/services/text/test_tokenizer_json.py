"""tokenizer.json is read as the library of JSON reads it, but for its merges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import ModelError
from services.text.tokenizer_json import read_tokenizer_json

TEXTS = st.text() | st.sampled_from(["merges", '"merges": [', '"merges": ["a b"]', "]]", '"', "\\", '\\"', "]}", ","])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@given(
    st.lists(TEXTS),
    st.lists(TEXTS) | st.lists(st.tuples(TEXTS, TEXTS).map(list)),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.booleans(),
)
def test_all_is_read_but_merges(
    folder: Path, pieces: list[str], merges: list[Any], indent: int | None, ascii: bool, first: bool
) -> None:
    rest = {"type": "BPE", "vocab": {piece: id for id, piece in enumerate(pieces)}}
    model = {"merges": merges, **rest} if first else {**rest, "merges": merges}
    raw = {"added_tokens": [{"content": piece} for piece in pieces], "model": model}
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(raw, indent=indent, ensure_ascii=ascii), encoding="utf-8", errors="surrogatepass")
    assert read_tokenizer_json(folder) == raw | {"model": model | {"merges": []}}


def test_a_file_without_merges_is_read_whole(folder: Path) -> None:
    raw = {"model": {"type": "Unigram", "vocab": [["merges", -1.5], ["[", 0]]}}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    assert read_tokenizer_json(folder) == raw


@pytest.mark.parametrize("end", ["", "]", '"a b"', '["a", "b"]}}', '["a", 1]]}}}'])
def test_a_torn_file_is_refused(end: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {}, "merges": [' + end)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not JSON"):
        read_tokenizer_json(folder)
