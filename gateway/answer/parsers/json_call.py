"""Calls with arguments in JSON: an object with name and arguments, or a name and the arguments after it."""

from __future__ import annotations

import re
from functools import cache

from gateway.answer.parsers.call_format import CALL_ID, INDEX, NAME, JsonObject, NamedJson
from gateway.answer.parsers.call_object import CallObject
from gateway.answer.parsers.text_reader import LONGEST_HEAD, LONGEST_NAME, CallReader, skip, stop_at


class JsonCall(CallReader):
    """Reads one JSON object, from its opening brace on. `stops`: marks that end it where its last brackets
    are missing. `name`: the name of the call, if it is known; then the object is the arguments."""

    def __init__(self, call: JsonObject, stops: tuple[str, ...], name: str = "") -> None:
        super().__init__(name)
        self._object = CallObject(name, call.name)
        self._stops = stops
        self._opened = bool(name)  # the opening brace is read, or is that of the arguments

    def read(self, text: str, at: int, final: bool) -> int:
        read = self._object
        if not self._opened:
            assert text[at] == "{"
            self._opened = True
            at += 1
        while at < len(text):
            end = read.run(text, at)
            if end > at:
                at = end
                continue
            outside = self.begun and not read.in_string and text[at] == "<"
            if outside and (stops := stop_at(text, at, self._stops, final)) is not False:
                self.ended = bool(stops)
                return at
            read.read(text[at])
            self.name = read.name
            self.begun = self.begun or (read.argued and bool(read.name))
            if read.broken:
                self.broken = True
                return at
            at += 1
            if read.ended:
                self.ended = True
                return at
        return at

    def take(self, last: bool = False) -> str:
        return self._object.take_arguments(last)


class NamedJsonCall(CallReader):
    """Reads a name with arguments after it."""

    def __init__(self, call: NamedJson, stops: tuple[str, ...]) -> None:
        super().__init__()
        self._call = call
        self._stops = stops
        self._arguments: JsonCall | None = None
        self._closing = re.findall(r"<[^<>]*>|[^<>\s]+", call.close)  # what is still to come

    def read(self, text: str, at: int, final: bool) -> int:
        if self._arguments is None:
            at = self._read_head(text, at, final)
            if self._arguments is None:
                return at
        if not self._arguments.ended:
            at = self._arguments.read(text, at, final)
            self.begun, self.broken = self._arguments.begun, self._arguments.broken
        if not self._arguments.ended:
            return at
        return self._read_close(text, at, final)

    def take(self, last: bool = False) -> str:
        return self._arguments.take(last) if self._arguments else ""

    def _read_head(self, text: str, at: int, final: bool) -> int:
        """Read up to the brace of the arguments."""
        begin = at + len(self._call.opening)
        brace = text.find("{", begin, begin + LONGEST_HEAD)
        if brace < 0 and not final and len(text) - begin < LONGEST_HEAD and _may_be_head(self._call, text[begin:]):
            return at
        head = text[begin : brace if brace >= 0 else len(text)]
        found = _head(self._call).fullmatch(head)
        if found is not None and (brace >= 0 or (final and self._call.ready in head)):
            self.name = found["name"]
            if brace < 0:
                return len(text)
            self._arguments = JsonCall(JsonObject(), self._stops, self.name)
            return brace
        if final and brace < 0 and _may_be_head(self._call, head):
            return len(text)
        self.broken = True
        return at

    def _read_close(self, text: str, at: int, final: bool) -> int:
        """Read what closes a call after its arguments, as far as it is there."""
        while self._closing:
            begin, piece = skip(text, at), self._closing[0]
            if text.startswith(piece, begin):
                at = begin + len(piece)
            elif not final and piece.startswith(text[begin:]):
                return at
            self._closing.pop(0)
        self.ended = True
        return at


@cache
def _head(call: NamedJson) -> re.Pattern[str]:
    """What a parser accepts from the mark of a call to its arguments: with other whitespace, and without the marks and
    words that models leave out."""
    name = rf"(?P<name>[A-Za-z0-9_.:-]{{1,{LONGEST_NAME}}}?)"
    pattern = ""
    for piece in re.split(r"(\{\w+\}|<[^<>]*>|\[\w+\]|\s+|```\w*)", call.head[len(call.opening) :]):
        if piece == NAME:
            pattern += name
        elif piece == INDEX:
            pattern += r"\d*\s*"
        elif piece == CALL_ID:
            pattern += r"(?:\[CALL_ID\]\w+)?"
        elif piece:
            pattern += rf"(?:{re.escape(piece.strip())})?\s*"
    return re.compile(rf"\s*{pattern}")


@cache
def _words(call: NamedJson) -> frozenset[str]:
    return frozenset(call.head[len(call.opening) :] + "[CALL_ID]")


def _may_be_head(call: NamedJson, text: str) -> bool:
    """Whether all characters can be part of what is before the arguments."""
    return all(c.isalnum() or c.isspace() or c in "_-.:" or c in _words(call) for c in text)
