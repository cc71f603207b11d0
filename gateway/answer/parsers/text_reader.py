"""Reading a text that comes in pieces: what is certain is read, what could go on in two ways waits for more of it."""

from __future__ import annotations

import json
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable

SPACE = " \t\r\n"

# names of tools, as texts have them without quotes
NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_-.:")
NAME = re.compile(r"[A-Za-z0-9_.:-]+")
LONGEST_NAME = 256  # characters; what is longer is no name
LONGEST_HEAD = 512  # characters before the arguments of a call, and of the tag of a parameter


class CallReader(ABC):
    """Reads one call. What it reads depends on the text only, not on how the text is cut.

    `name`: empty until it is known. `begun`: it certainly is a call, so that its name can be told. `ended`: the call is
    complete. `broken`: the text where it stopped cannot belong to such a call; if it has begun, it ends there.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.begun = self.ended = self.broken = False
        self._made: list[str] = []  # of the arguments, not taken yet

    @abstractmethod
    def read(self, text: str, at: int, final: bool) -> int:
        """Read `text` from index `at` on as far as it is certain what it is. `final`: no text follows. Returns the
        index of the first character that was not read."""

    def take(self, last: bool = False) -> str:
        """The arguments, as JSON, that were read since the last call of `take`; `last`: no more are to come."""
        made = "".join(self._made)
        self._made.clear()
        return made


def find(text: str, at: int, marks: Iterable[str], final: bool) -> tuple[int, str]:
    """The first of `marks` in `text` from index `at` on: its place, and the mark. If there is none: the index up to
    which there certainly is none, and "". An empty mark counts as none."""
    place, found = len(text), ""
    given = [mark for mark in marks if mark]
    for mark in given:
        begin = text.find(mark, at, place + len(mark))
        if begin >= 0 and (begin < place or (begin == place and len(mark) > len(found))):
            place, found = begin, mark
    if found or final:
        return place, found
    return min((held_from(text, at, mark) for mark in given), default=len(text)), ""


def stop_at(text: str, at: int, marks: Iterable[str], final: bool) -> bool | None:
    """Whether one of `marks` is at index `at`; None if more text has to say."""
    if any(text.startswith(mark, at) for mark in marks):
        return True
    return None if not final and any(held_from(text, at, mark) == at for mark in marks) else False


def held_from(text: str, at: int, mark: str) -> int:
    """The index from which the end of `text` is the beginning of `mark`; its length if it is none."""
    for begin in range(max(at, len(text) - len(mark) + 1), len(text)):
        if mark.startswith(text[begin:]):
            return begin
    return len(text)


def skip(text: str, at: int) -> int:
    """The index of the first character from `at` on that is no whitespace."""
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def quoted(text: str) -> str:
    """`text` as it is within the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
