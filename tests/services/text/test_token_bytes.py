"""TextTables: the joined bytes of the tokens of a text are the bytes of the text."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from awkward_texts import TRICKY, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from services.errors import ModelError
from services.text import TextTables, Tokenizer
from services.text.token_bytes import PackedBytes


@pytest.fixture(scope="module")
def smollm(default_model: Path) -> Tokenizer:
    return Tokenizer.load(default_model)


def spelled(tokenizer: Tokenizer, text: str) -> bytes:
    """Return the bytes of the text's tokens, with the names of special tokens, which a text may contain."""
    return b"".join(map(tokenizer.literal_bytes, tokenizer.encode(text)))


def test_smollm_is_exact(smollm: Tokenizer) -> None:
    """SmolLM2 was trained without tokens for 21 byte values; its tokenizer drops them."""
    known = {piece[0] for piece in smollm.tables.token_bytes if len(piece) == 1}
    assert len(known) == 235

    @settings(max_examples=300)
    @given(texts(TRICKY))
    def holds(text: str) -> None:
        assert spelled(smollm, text) == bytes(byte for byte in text.encode() if byte in known)

    holds()


def test_byte_level_is_exact(byte_level: Path) -> None:
    tokenizer = Tokenizer.load(byte_level)

    @settings(max_examples=300)
    @given(texts([*TRICKY, "  «é»", "<|end|>"]))
    def holds(text: str) -> None:
        assert spelled(tokenizer, text) == text.encode()

    holds()


@pytest.mark.parametrize("kind", ["sentencepiece_bpe", "unigram"])
def test_sentencepiece_is_exact_but_for_the_prepended_space(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer = Tokenizer.load(request.getfixturevalue(kind))
    prepended = " " if kind == "unigram" else ""
    others = ("▁", "<0x", "<unk>", "<s>", "</s>")  # their bytes are not their spelling

    @settings(max_examples=300)
    @given(texts(TRICKY).filter(lambda text: not any(other in text for other in others)))
    def holds(text: str) -> None:
        want = prepended + text if text and not text.startswith(" ") else text
        assert tokenizer.tables.join(tokenizer.encode(text)) == want.encode()

    holds()


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_bpe", "unigram"])
def test_agrees_with_the_library_decoder(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    tokenizer, backend = Tokenizer.load(folder), Backend.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("the cat 東京 sat")
    assert tokenizer.decode(ids).removeprefix(" ") == backend.decode(ids).removeprefix(" ")


def test_special_tokens_add_nothing(byte_level: Path) -> None:
    tokenizer = Tokenizer.load(byte_level)
    ids = tokenizer.encode("a<|end|>b")
    assert [i for i in ids if i in tokenizer.special_ids] == [0]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|end|>b"
    assert tokenizer.literal_bytes(0) == b"<|end|>"


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_bpe", "unigram", "default_model"])
def test_special_tokens_that_are_text_are_spelled_as_by_the_library(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    tokenizer, backend = Tokenizer.load(folder), Backend.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.special_ids
    for special in sorted(tokenizer.special_ids):
        ids = [*tokenizer.encode("cat", add_special_tokens=False), special, special]
        shown = tokenizer.tables.of(skip_special_tokens=False).join(ids).decode()
        assert shown.removeprefix(" ") == backend.decode(ids, skip_special_tokens=False).removeprefix(" ")
        assert shown.removesuffix(2 * tokenizer.literal_bytes(special).decode()) == tokenizer.decode(ids)


def test_ids_beyond_the_tokenizer_add_nothing(byte_level: Path) -> None:
    tables = TextTables.load(byte_level)
    assert tables.bytes_of(len(tables.token_bytes)) == b""
    assert tables.join([10**6]) == b""


@pytest.mark.parametrize(
    ("model", "decoder", "why"),
    [
        (models.WordPiece({"a": 0, "[UNK]": 1}), decoders.WordPiece(), "WordPiece"),
        (models.BPE({"a": 0, "b</w>": 1}, [], end_of_word_suffix="</w>"), decoders.BPEDecoder(), "suffix|BPEDecoder"),
        (models.WordLevel({"a": 0}, unk_token="a"), None, "no decoder"),
        (models.BPE({"a": 0}, []), decoders.Replace("a", "b"), "replaces"),
        (models.BPE({"a": 0}, []), decoders.Sequence([decoders.Metaspace(), decoders.Strip(" ", 0, 1)]), "strips"),
    ],
    ids=["wordpiece", "suffix", "none", "replace", "strip"],
)
def test_tokenizers_without_exact_bytes_are_refused(model: object, decoder: object, why: str, tmp_path: Path) -> None:
    backend = Backend(model)
    if decoder is not None:
        backend.decoder = decoder
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match=why):
        TextTables.load(tmp_path)


HALF = {"model": {"type": "BPE", "vocab": {"\ud800": 0}}, "decoder": {"type": "ByteLevel"}}


@pytest.mark.parametrize(
    "content", [None, "{", "[]", json.dumps({"model": {"type": "BPE"}, "decoder": None}), json.dumps(HALF)]
)
def test_a_broken_file_is_a_model_error(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_loading_imports_no_torch(byte_level: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from services.text import Tokenizer; import services.models;"
        f"Tokenizer.load(Path({str(byte_level)!r})); sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])


@given(st.lists(st.binary(max_size=5)), st.slices(7))
def test_packed_pieces_are_a_list(pieces: list[bytes], some: slice) -> None:
    packed = PackedBytes(pieces)
    assert list(packed) == pieces
    assert len(packed) == len(pieces)
    assert packed[some] == pieces[some]
    with pytest.raises(IndexError):
        packed[len(pieces)]
