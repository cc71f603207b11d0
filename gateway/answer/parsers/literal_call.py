"""Calls as `name(key=value, ...)`, with values as a language writes them. Their arguments are read as JSON.

Words that are no literal are strings. Values without a key are dropped.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable

from gateway.answer.parsers.call_format import Literals
from gateway.answer.parsers.text_reader import LONGEST_NAME, NAME, CallReader, find, held_from, quoted, skip, stop_at

CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
PYTHON_NUMBER = re.compile(r"[-+]?[0-9._xXoObBa-fA-FeE+-]{1,40}")
ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|[^xuU0-7])", re.DOTALL)
LONGEST_ESCAPE = 10
CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
OBJECT, ARRAY = "{}", "[]"
MOST_OPEN = 1000  # brackets


class LiteralCall(CallReader):
    """Reads one call, from its name or the text before it on."""

    def __init__(self, call: Literals, stops: tuple[str, ...]) -> None:
        super().__init__()
        self._call = call
        self._stops = stops
        self._open: list[str] = []  # the objects and arrays that are open
        self._first = True  # nothing is in the innermost one
        self._key = True  # a key is expected
        self._done = False  # a value has been read, and no comma after it
        self._quote = ""  # of the string that is read
        self._parts: list[str] = []  # of a key or a word
        self._is_key = False  # the string that is read is one
        self._read: Callable[[str, int, bool], int] = self._head

    def read(self, text: str, at: int, final: bool) -> int:
        while at < len(text) and not (self.ended or self.broken):
            begin, reading = at, self._read
            at = self._read(text, at, final)
            if at == begin and reading == self._read:
                break
        return at

    def _head(self, text: str, at: int, final: bool) -> int:
        begin = at + len(self._call.opening)
        found = NAME.match(text, begin)
        end = found.end() if found else begin
        if end == len(text) and end - begin <= LONGEST_NAME:
            return end if final else at
        if end == begin or end - begin > LONGEST_NAME or text[end] != self._call.begin:
            self.broken = True
            return at
        self.name, self.begun = text[begin:end], True
        self._enter(OBJECT)
        self._read = self._item
        return end + 1

    def _item(self, text: str, at: int, final: bool) -> int:
        """What is outside strings and words: brackets, commas, and the beginning of keys and values."""
        at = skip(text, at)
        if at == len(text):
            return at
        c = text[at]
        if (quote := self._quote_at(text, at, final)) is None:
            return at
        if c == "<" and not quote and (stops := stop_at(text, at, self._stops, final)) is not False:
            self.ended = bool(stops)
            return at
        if c in ")]}":
            self._leave()
            return at + 1
        if c == ",":
            self._done, self._key = False, self._open[-1] == OBJECT
            return at + 1
        if self._done:
            return at + max(1, len(quote))  # what follows a value without a comma
        if c in "[({" and not quote:
            if self._key or len(self._open) >= MOST_OPEN:
                return at + 1
            self._before_value()
            self._enter(OBJECT if c == "{" else ARRAY)
            return at + 1
        if c in ":=":
            return at + 1
        self._parts.clear()
        self._quote, self._is_key = quote, self._key
        if quote and not self._is_key:
            self._before_value()
            self._made.append('"')
        self._read = self._string if quote else self._word
        return at + len(quote)

    def _quote_at(self, text: str, at: int, final: bool) -> str | None:
        """The quote that begins here; "" if none does; None if more text has to say."""
        if not final and any(
            held_from(text, at, quote) == at and text[at:] != quote for quote in self._call.dialect.quotes
        ):
            return None
        return next((quote for quote in self._call.dialect.quotes if text.startswith(quote, at)), "")

    def _string(self, text: str, at: int, final: bool) -> int:
        escape = "\\" if self._call.dialect.escapes else ""
        place, mark = find(text, at, (self._quote, escape), final)
        self._add(text[at:place])
        if mark and mark == escape:
            found = ESCAPE.match(text, place)
            if not final and len(text) - place < LONGEST_ESCAPE and (found is None or found.end() == len(text)):
                return place
            if found is None:
                self._add("\\")
                return place + 1
            self._add_escape(found[0])
            return found.end()
        if mark:
            self._end_string()
        return place + len(mark)

    def _add(self, text: str) -> None:
        if self._is_key:
            self._parts.append(text)
        else:
            self._made.append(quoted(text))

    def _add_escape(self, escape: str) -> None:
        character = _unescaped(escape)
        if not "\ud800" <= character <= "\udfff":
            self._add(character)
        elif self._is_key:
            self._add("\ufffd")
        else:  # half of a character, which JSON writes in the same way
            self._made.append(f"\\u{ord(character):04x}")

    def _end_string(self) -> None:
        if self._is_key:
            self._parts = ["".join(self._parts)]
            self._read = self._after_key
        else:
            self._made.append('"')
            self._done = True
            self._read = self._item

    def _word(self, text: str, at: int, final: bool) -> int:
        """A key or a value without quotes."""
        ends = (",", ")", "]", "}", self._call.equals if self._is_key and len(self._open) == 1 else "")
        colon = ":" if self._is_key else ""
        place, mark = find(text, at, (*ends, colon, *self._stops), final)
        self._parts.append(text[at:place])
        if not mark:
            return place
        word = "".join(self._parts).strip()
        self._parts = [word]
        if self._is_key:
            self._read = self._after_key
        else:
            self._before_value()
            self._made.append(_literal(word))
            self._done = True
            self._read = self._item
        return place

    def _after_key(self, text: str, at: int, final: bool) -> int:
        at = skip(text, at)
        if at == len(text):
            return at
        if text[at] in (self._call.equals if len(self._open) == 1 else "", ":"):
            self._made.append(("" if self._first else ", ") + json.dumps(self._parts[0], ensure_ascii=False) + ": ")
            self._first = self._key = False
            self._read = self._item
            return at + 1
        self._done = True  # a value without a key
        self._read = self._item
        return at

    def _before_value(self) -> None:
        if self._open[-1] == ARRAY:
            self._made.append("" if self._first else ", ")
            self._first = False

    def _enter(self, kind: str) -> None:
        self._made.append(kind[0])
        self._open.append(kind)
        self._first, self._key, self._done = True, kind == OBJECT, False

    def _leave(self) -> None:
        if self._open[-1] == OBJECT and not (self._key or self._done or self._first):
            self._made.append("null")  # a key without a value
        self._made.append(self._open.pop()[1])
        self._first, self._key, self._done = False, False, True
        self.ended = not self._open


def _literal(word: str) -> str:
    """The JSON of a word."""
    if word in CONSTANTS:
        return CONSTANTS[word]
    if NUMBER.fullmatch(word):
        return word
    if PYTHON_NUMBER.fullmatch(word):
        try:
            return json.dumps(ast.literal_eval(word), allow_nan=False)
        except (ValueError, TypeError, SyntaxError):
            pass
    return json.dumps(word, ensure_ascii=False)


def _unescaped(escape: str) -> str:
    """The character that an escape of Python or JSON stands for; the escape itself if it stands for none."""
    kind, digits = escape[1], escape[2:]
    if kind in "xuU":
        code = int(digits, 16)
        return chr(code) if code < 0x110000 else escape
    if kind in "01234567":
        return chr(int(escape[1:], 8))
    if kind in "\\'\"/":
        return kind
    return CHARACTERS.get(kind, escape)
