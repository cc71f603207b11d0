"""Parts: the content, the reasoning and the calls of tools in the text of an answer, in their order."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

STRIDE = 64  # numbers of parts per token event


class PartKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Part(NamedTuple):
    """A piece of an answer. Consecutive pieces of one kind or of one call are joined. It is a tuple because tuples are
    created faster than dataclasses, and each token of each stream may need one.

    `number` is a function of token indices: `STRIDE` times the number of token events (including the end) up to the
    last piece in it, plus the place of that piece among those of its token. Numbers never decrease within an answer.
    Pieces have different numbers, except for those of a token that has more than `STRIDE`: the last ones share one.
    """

    kind: PartKind
    text: str  # for a call: a piece of its arguments, which are JSON
    number: int
    call: int = -1  # the index of the call in its choice
    name: str | None = None  # of the called tool, in the first part of a call


def call_id(request: str, choice: int, call: int) -> str:
    """The id of a call, the same at every gateway: 24 hexadecimal digits, without a prefix."""
    return sha256(f"{request}/{choice}/{call}".encode()).hexdigest()[:24]
