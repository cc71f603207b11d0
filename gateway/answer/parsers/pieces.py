"""Pieces: what a parser gives, and the protocol of parsers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.answer.parts import PartKind


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer. The fields are those of `Part`, which is made of pieces."""

    kind: PartKind
    text: str
    call: int = -1
    name: str | None = None  # in the first piece of a call


class Parser(Protocol):
    """Reads the text of one choice. What it has given after a text depends on the text only, not on how the text was
    cut into pushes. It never raises, whatever a model writes.
    """

    def push(self, text: str) -> list[Piece]:
        """The pieces that became final with `text`. Neighbours are of different kinds, or of different calls."""
        ...

    def finish(self) -> list[Piece]:
        """The pieces that were held back at the end of the text."""
        ...
