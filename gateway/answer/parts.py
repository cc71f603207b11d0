"""Parts: the content, the reasoning and the calls of tools in the text of an answer, in their order."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

# Numbers of events per token, of answers that are parsed. A token brings as much text as a stop string may hold back
# and its own, and no parser makes a piece of fewer than three characters on average.
STRIDE = 512


class PartKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Part(NamedTuple):
    """A piece of an answer. The pieces of one kind, and those of one call, follow each other and are joined. It is a
    tuple, which is made faster than a dataclass: each token of each stream may make one.

    `number` is a function of token indices: `STRIDE` times the number of token events (including the end) up to the
    last piece in it, plus the place of that piece among those of its token. The numbers of an answer increase.
    """

    kind: PartKind
    text: str  # for a call: a piece of its arguments, which are JSON
    number: int
    call: int = -1  # the index of the call in its choice
    name: str | None = None  # of the called tool, in the first part of a call


def call_id(request: str, choice: int, call: int) -> str:
    """The id of a call, the same at every gateway: 24 hexadecimal digits, without a prefix."""
    return sha256(f"{request}/{choice}/{call}".encode()).hexdigest()[:24]
