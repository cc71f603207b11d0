"""Vocabularies for measurements: that of a model, or of a file in tiktoken's format."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.models import ModelInfo
from services.text import TextTables


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tables` have the bytes of each token, `size` is the number of logits, `eos` ends an output."""

    name: str
    tables: TextTables
    size: int
    eos: int

    def ordinary(self) -> list[bytes]:
        """The bytes of each id; empty for special tokens and for ids without a token."""
        return [
            b"" if id in self.tables.special_ids else self.tables.bytes_of(id)
            for id in range(self.size)
        ]  # fmt: skip


class Encoder:
    """Divides text into the longest tokens. A model's tokenizer may divide it in another way; grammars allow both."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._ids = {token: id for id, token in reversed(list(enumerate(tokens))) if token}
        self._longest = max(map(len, self._ids))

    def encode(self, text: str) -> list[int]:
        """Raises ValueError for a text that the vocabulary cannot spell."""
        data, place, ids = text.encode(), 0, []
        while place < len(data):
            for length in range(min(self._longest, len(data) - place), 0, -1):
                if (id := self._ids.get(data[place : place + length])) is not None:
                    break
            else:
                raise ValueError(f"no token spells {data[place : place + 1]!r}")
            ids.append(id)
            place += length
        return ids


def of_model(folder: Path) -> Vocabulary:
    info = ModelInfo.load(folder)
    return Vocabulary(info.name, TextTables.load(folder), info.vocab_size, min(info.eos_token_ids))


def of_ranks(file: Path) -> Vocabulary:
    """A file in tiktoken's format: in each line a token in base64 and its id. One special token follows, which ends an
    output."""
    lines = [line.split() for line in file.read_bytes().splitlines() if line]
    ids = {int(id): base64.b64decode(token) for token, id in lines}
    eos = max(ids) + 1
    tokens = [ids.get(id, b"") for id in range(eos)]
    special = frozenset({eos})
    whole = TextTables([*tokens, b"<|endoftext|>"], special)
    return Vocabulary(file.stem, TextTables([*tokens, b""], special, whole), eos + 1, eos)
