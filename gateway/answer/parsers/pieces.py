"""Pieces: what a parser returns, and the protocol of parsers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.answer.parts import PartKind

TEXT, REASONING, CALL = PartKind


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer. The fields are those of `Part`, which is made of pieces."""

    kind: PartKind
    text: str
    call: int = -1
    name: str | None = None  # in the first piece of a call


class Parser(Protocol):
    """Reads the text of one choice. What it returns depends on the text only, not on how the text is cut into pushes.
    It never raises, whatever a model writes.
    """

    def push(self, text: str) -> list[Piece]:
        """The pieces that became final with `text`. Neighbours are of different kinds, or of different calls."""
        ...

    def finish(self) -> list[Piece]:
        """The pieces that were held back at the end of the text."""
        ...


class PieceWriter:
    """Collects the text that a parser has read until it is taken, joined to pieces."""

    def __init__(self) -> None:
        self._made: list[Piece] = []
        self._kind = TEXT
        self._call = -1
        self._name: str | None = None
        self._texts: list[str] = []

    def add(self, kind: PartKind, text: str, call: int = -1, name: str | None = None) -> None:
        """`text` may be empty if there is a `name`."""
        if kind is not self._kind or call != self._call:
            self._close()
            self._kind, self._call = kind, call
        self._name = self._name if name is None else name
        self._texts.append(text)

    def take(self) -> list[Piece]:
        if self._texts:
            self._close()
        made, self._made = self._made, []
        return made

    def _close(self) -> None:
        text = self._texts[0] if len(self._texts) == 1 else "".join(self._texts)
        if text or self._name is not None:
            self._made.append(Piece(self._kind, text, self._call, self._name))
        self._name = None
        self._texts.clear()


class Trimmed:
    """Text of one kind. Whitespace beside a mark (of calls or of reasoning) is left out; other whitespace is held back
    until text follows."""

    def __init__(self, writer: PieceWriter, kind: PartKind, after_mark: bool = False) -> None:
        self._writer = writer
        self._kind = kind
        self._after_mark = after_mark
        self._spaces: list[str] = []

    def add(self, text: str) -> None:
        said = text.lstrip() if self._after_mark else text
        body = said.rstrip()
        if body:
            self._writer.add(self._kind, "".join(self._spaces) + body if self._spaces else body)
            self._spaces.clear()
            self._after_mark = False
        if len(body) < len(said):
            self._spaces.append(said[len(body) :])

    def mark(self) -> None:
        """A mark, or what belongs to it, comes next."""
        self._spaces.clear()
        self._after_mark = True

    def finish(self) -> None:
        """The answer ends."""
        self._writer.add(self._kind, "".join(self._spaces))
        self._spaces.clear()
