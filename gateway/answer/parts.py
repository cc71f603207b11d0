"""Parts: the content, the reasoning and the calls of tools in the text of an answer; and the protocol of the parsers
that divide the text into them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

# Numbers of events per token, of answers that are parsed. A token brings as much text as a stop string may hold back
# and its own, and no parser makes a part of fewer than three characters on average.
STRIDE = 512


class PartKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    CUSTOM = "custom"  # the call of a custom tool


TEXT, REASONING, CALL, CUSTOM = PartKind  # reading a member of an enum is slow


class Part(NamedTuple):
    """A part of an answer, or a piece of one: neighbours of one kind, and those of one call, are joined. It is a tuple,
    which is made faster than a dataclass: each token of each stream may make one.

    `number` orders the events of an answer. It is a function of token indices: `STRIDE` times the number of token
    events (including the end) up to the last piece in the part, plus the place of that piece among those of its token.
    A parser leaves it 0.
    """

    kind: PartKind
    text: str  # for a call: a piece of its arguments, which are JSON; for one of a custom tool: of its input
    call: int = -1  # the index of the call in its choice
    name: str | None = None  # of the called tool, in the first piece of a call
    number: int = 0


class Parser(Protocol):
    """Reads the text of one choice. What it returns depends on the text only, not on how the text is cut into pushes.
    It never raises, whatever a model writes.
    """

    def push(self, text: str) -> list[Part]:
        """The parts that became final with `text`. Neighbours are of different kinds, or of different calls."""
        ...

    def finish(self) -> list[Part]:
        """The parts that were held back at the end of the text."""
        ...


class PartWriter:
    """Collects the text that a parser has read until it is taken, joined to parts."""

    def __init__(self) -> None:
        self._made: list[Part] = []
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

    def take(self) -> list[Part]:
        if self._texts:
            self._close()
        made, self._made = self._made, []
        return made

    def _close(self) -> None:
        text = self._texts[0] if len(self._texts) == 1 else "".join(self._texts)
        if text or self._name is not None:
            self._made.append(Part(self._kind, text, self._call, self._name))
        self._name = None
        self._texts.clear()


class Trimmed:
    """Text of one kind. Whitespace beside a mark (of calls or of reasoning) is left out; other whitespace is held back
    until text follows."""

    def __init__(self, writer: PartWriter, kind: PartKind, after_mark: bool = False) -> None:
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
