"""TextTables: the bytes of each token id, read from tokenizer.json alone, so that a scheduler needs no model.

The table is exact for decoders with which the bytes of a token do not depend on its neighbours: byte-level decoders
(GPT-2's alphabet) and those of SentencePiece (a visible space, `<0xNN>` for bytes). Other decoders are refused, never
approximated. SentencePiece drops the space before the first word of a text. The table keeps it, because the output of a
model continues a prompt.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

from services.errors import ModelError
from services.text.tokenizer_json import read_tokenizer_json

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PackedBytes(Sequence[bytes]):
    """Pieces of bytes, one behind the other in memory. As objects of their own, those of a large vocabulary would take
    ten times as much, and keep more from being returned that was allocated beside them."""

    __slots__ = ("_ends", "_joined")

    def __init__(self, pieces: Iterable[bytes]) -> None:
        each = list(pieces)
        self._joined = b"".join(each)
        self._ends = array("Q", accumulate(map(len, each), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._joined[self._ends[index] : self._ends[index + 1]]


@dataclass(frozen=True, slots=True)
class TextTables:
    """The bytes that each token id adds to the text. Ids without a token add nothing. Special tokens add their spelling
    in `with_special`, and nothing otherwise.
    """

    token_bytes: Sequence[bytes]
    special_ids: frozenset[int]
    with_special: TextTables | None = None  # for requests whose special tokens are text

    @classmethod
    def load(cls, folder: Path, exact: bool = True) -> TextTables:
        """Return the tables of the model in `folder`. Raises ModelError if its tokenizer has no exact table. Unless
        they are to be `exact`, since the model generates no text, tokens of such a tokenizer are as the vocabulary
        spells them."""
        return cls.made_of(read_tokenizer_json(folder), folder, exact)

    @classmethod
    def made_of(cls, raw: dict[str, Any], folder: Path, exact: bool = True) -> TextTables:
        """Return the tables for the content of a tokenizer.json, see `load`. Raises ModelError for one that is not
        supported."""
        try:
            return _build(raw, exact)
        except (ModelError, UnicodeEncodeError) as error:  # the spelling of a token may be half of a character
            raise ModelError(f"{folder / 'tokenizer.json'}: {error}") from None

    def of(self, skip_special_tokens: bool) -> TextTables:
        """Return the tables of a request with this `skip_special_tokens`, for its text and its stop strings."""
        if skip_special_tokens:
            return self
        assert self.with_special is not None, "these tables do not know how special tokens are spelled"
        return self.with_special

    def bytes_of(self, token: int) -> bytes:
        """Return the token's bytes; b"" for ids beyond the tokenizer, because a model may have more logits than
        that.
        """
        assert token >= 0, f"{token = }"
        return self.token_bytes[token] if token < len(self.token_bytes) else b""

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token that is spelled like `text`, the lowest if there are several; None if
        there is none.
        """
        spelled, data = self.of(skip_special_tokens=False), text.encode()
        return next((id for id in sorted(self.special_ids) if spelled.bytes_of(id) == data), None)

    def join(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self.bytes_of, tokens))


def _build(raw: dict[str, Any], exact: bool) -> TextTables:
    spell, literal = _decoder(raw.get("decoder")) if exact else (str.encode, True)
    added = raw.get("added_tokens") or []
    pieces = {token: spell(text) for text, token in _vocabulary(raw["model"], exact)}
    # an added token is matched in the text as it is written
    pieces |= {t["id"]: t["content"].encode() if literal else spell(t["content"]) for t in added}
    special = frozenset(t["id"] for t in added if t["special"])
    spelled = [pieces.get(i, b"") for i in range(max(pieces, default=-1) + 1)]
    skipped = (b"" if i in special else piece for i, piece in enumerate(spelled))
    return TextTables(PackedBytes(skipped), special, TextTables(PackedBytes(spelled), frozenset()))


def _vocabulary(model: dict[str, Any], exact: bool) -> Iterable[tuple[str, int]]:
    kind, vocab = model.get("type"), model.get("vocab")
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if exact and model.get(affix):
            raise ModelError(f"tokens with a {affix} ({model[affix]!r}) have no exact bytes")
    if isinstance(vocab, dict):
        return vocab.items()
    if isinstance(vocab, list):  # Unigram: [piece, score]
        return [(entry[0], i) for i, entry in enumerate(vocab)]
    raise ModelError(f"a model of type {kind!r} has no vocabulary that can be read")


def _decoder(decoder: dict[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """Return the function from a piece to its bytes, and whether added tokens are literal with this decoder."""
    if decoder is None:
        raise ModelError("it has no decoder, so its tokens have no exact bytes")
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return _byte_level, True
    spaces = [mark for step in steps if (mark := _space_mark(step)) is not None]
    known = {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
    if len(spaces) != 1 or not set(kinds) <= known:
        raise ModelError(f"a decoder of {' + '.join(kinds)} gives tokens no exact bytes")
    return _sentencepiece(spaces[0], "ByteFallback" in kinds), False


def _space_mark(step: dict[str, Any]) -> str | None:
    """Return the character that stands for a space, if this step of a decoder replaces one."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace":
        if step["content"] != " " or "String" not in step["pattern"]:
            raise ModelError(f"a decoder that replaces {step['pattern']} by {step['content']!r} is not supported")
        return str(step["pattern"]["String"])
    if step["type"] == "Strip" and (step["stop"] or step["content"] != " "):
        raise ModelError(f"a decoder that strips {step['content']!r} at the end is not supported")
    return None


def _sentencepiece(space: str, byte_fallback: bool) -> Callable[[str], bytes]:
    def spell(piece: str) -> bytes:
        if byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes.fromhex(match[1])
        return piece.replace(space, " ").encode()

    return spell


def _gpt2_alphabet() -> dict[str, int]:
    """Return GPT-2's character for each byte: printable Latin-1 is unchanged, the rest is moved to U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


ALPHABET = _gpt2_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([ALPHABET[character] for character in piece])
    except KeyError:  # not in the alphabet: the decoder takes such a piece as it is
        return piece.encode()
