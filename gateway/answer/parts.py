"""Parts: the content, the reasoning and the calls of tools in the text of an answer, in their order."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

STRIDE = 64  # numbers of events per token, of answers that are parsed


class PartKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Part(NamedTuple):
    """A piece of an answer. The pieces of one kind, and those of one call, follow each other and are joined. It is a
    tuple, which is made faster than a dataclass: each token of each stream may make one.

    `number` is a function of token indices: `STRIDE` times the number of token events (including the end) up to the
    last piece in it, plus the place of that piece among those of its token. Numbers of an answer never decrease; those
    of different pieces are different unless a token has more than `STRIDE` of them, whose last ones have one number.
    """

    kind: PartKind
    text: str  # for a call: a piece of its arguments, which are JSON
    number: int
    call: int = -1  # the index of the call in its choice
    name: str | None = None  # of the called tool, in the first part of a call


def call_id(request: str, choice: int, call: int) -> str:
    """The id of a call, the same at every gateway: 24 hexadecimal digits, without a prefix."""
    return sha256(f"{request}/{choice}/{call}".encode()).hexdigest()[:24]
