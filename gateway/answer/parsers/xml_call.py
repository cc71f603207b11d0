"""Calls with parameters between tags. The tags have no types, so they come from the schemas of the tools.

The value of a parameter is a string if the schema of the tool allows no other type, or does not name the parameter. Any
other value is read as JSON, or else as Python writes it, and is a string if it is neither or not of a type that the
schema allows. Within tags the text is as it is: nothing is escaped. A value ends at its closing tag or, if that is
missing, at the tag of the next parameter or of the end of the call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from gateway.answer.parsers.call_format import IS_STRING, Xml
from gateway.answer.parsers.text_reader import LONGEST_HEAD, LONGEST_NAME, NAME, CallReader, find, quoted, skip

MOST_BRACKETS = 100  # within each other; a value with more of them stays a string
LONGEST_PYTHON = 1 << 16  # characters of a value that may be read as Python
TYPES = {bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}


class XmlCall(CallReader):
    """Reads one call. `types`: for each tool, the types of the parameters that are not only strings, as
    `types_of` has them."""

    def __init__(self, call: Xml, types: Mapping[str, Mapping[str, str]], stops: tuple[str, ...]) -> None:
        super().__init__()
        self._call = call
        self._types = types
        self._stops = stops
        self._empty = True  # no parameter has begun
        self._in_value = False
        self._type = ""  # of the value that is read; empty: a string
        self._value: list[str] = []  # of a value that is no string
        self._fresh = False  # nothing of the value has been read

    def read(self, text: str, at: int, final: bool) -> int:
        if not self.begun:
            at = self._read_name(text, at, final)
        while self.begun and not self.ended and at < len(text):
            begin, was_value = at, self._in_value
            at = self._read_value(text, at, final) if was_value else self._read_tag(text, at, final)
            if at == begin and was_value == self._in_value:
                break
        return at

    def _read_name(self, text: str, at: int, final: bool) -> int:
        begin = at + len(self._call.opening)
        found = NAME.match(text, begin)
        end = found.end() if found else begin
        after = self._call.after_name or "<"  # a tag, with or without whitespace before it
        close = end if self._call.after_name else skip(text, end)
        rest = text[close : close + len(after)]
        if rest == after and begin < end <= begin + LONGEST_NAME:
            self.name, self.begun = text[begin:end], True
            return close + len(self._call.after_name)
        if rest != after and after.startswith(rest) and end <= begin + LONGEST_NAME:
            return len(text) if final else at
        self.broken = True
        return at

    def _read_tag(self, text: str, at: int, final: bool) -> int:
        """Read up to the next value, or the end of the call. Text between tags is dropped."""
        call = self._call
        close = call.close.strip()
        place, mark = find(text, at, (call.before_key, close, *self._stops), final)
        if not mark:
            return place
        if mark != call.before_key:
            self._end()
            return place + len(close) if mark == close else place
        begin = place + len(call.before_key)
        last = _last_tag(call)
        end = text.find(last, begin, begin + LONGEST_HEAD)
        if end < 0:
            waits = not final and len(text) - begin < LONGEST_HEAD
            return place if waits else begin
        found = _head(call).fullmatch(text, begin, end + len(last))
        if found is None:
            return begin
        self._begin_value(found)
        return end + len(last)

    def _begin_value(self, found: re.Match[str]) -> None:
        key = found["key"]
        kind = self._types.get(self.name, {}).get(key, "")
        if IS_STRING in self._call.parameter:
            kind = "" if found["is_string"] == "true" else kind or "any"
        self._made.append(f'{"{" if self._empty else ", "}"{quoted(key)}": ' + ("" if kind else '"'))
        self._empty = False
        self._type, self._in_value, self._fresh = kind, True, True

    def _read_value(self, text: str, at: int, final: bool) -> int:
        call = self._call
        padding, end_mark = call.padding, call.after_value.strip()
        ends = (end_mark, call.before_key, call.close.strip() or (self._stops[-1] if self._stops else ""))
        place, mark = find(text, at, ends, final)
        if self._fresh and (mark or at < place):
            self._fresh = False
            if padding and text.startswith(padding, at):
                at += len(padding)
        if mark:
            value = text[at:place].removesuffix(padding) if padding else text[at:place]
            self._add(value)
            self._end_value()
            return place + len(end_mark) if mark == end_mark else place
        if padding and text.endswith(padding, at, place):
            place -= len(padding)  # which may be the one before the closing tag
        self._add(text[at:place])
        return max(at, place)

    def _add(self, text: str) -> None:
        if self._type:
            self._value.append(text)
        else:
            self._made.append(quoted(text))

    def _end_value(self) -> None:
        if self._type:
            self._made.append(typed("".join(self._value), self._type))
            self._value.clear()
        else:
            self._made.append('"')
        self._in_value = False

    def _end(self) -> None:
        self._made.append("{}" if self._empty else "}")
        self.ended = True


@cache
def _last_tag(call: Xml) -> str:
    """The end of what is between the key and the value."""
    tag = call.before_value.strip()
    return tag[tag.rfind("<") :] if "<" in tag else tag[-1]


@cache
def _head(call: Xml) -> re.Pattern[str]:
    """What is from the key to the value, with the key as a group."""
    pattern = rf"(?P<key>[^<>]{{1,{LONGEST_NAME}}}?)"
    for piece in re.split(r"(\{\w+\}|\s+)", call.before_value.strip()):
        if piece == IS_STRING:
            pattern += "(?P<is_string>true|false)"
        else:
            pattern += re.escape(piece) if piece.strip() else r"\s*"
    return re.compile(pattern)


def typed(text: str, types: str) -> str:
    """The JSON of a value that `text` is, which is of one of `types`; a string if it cannot be read so."""
    allowed = types.split(",")
    written = text.strip()
    if _brackets(written) <= MOST_BRACKETS:
        for read in (_json, _python):
            value, made = read(written)
            if made and _is_of(value, allowed):
                return made
        if written.lower() in ("true", "false") and "boolean" in allowed:
            return written.lower()
        if written.lower() in ("null", "none") and "string" not in allowed:
            return "null"
    return json.dumps(text, ensure_ascii=False)


def _is_of(value: Any, allowed: list[str]) -> bool:
    kind = TYPES.get(type(value))
    return kind in allowed or "any" in allowed or (kind == "integer" and "number" in allowed)


def _json(text: str) -> tuple[Any, str]:
    """The value that JSON stands for, and its JSON; "" if it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None, ""
    return value, text if type(value) is not str else ""


def _python(text: str) -> tuple[Any, str]:
    """The value that a Python literal stands for, and its JSON; "" if it is none."""
    if len(text) > LONGEST_PYTHON:
        return None, ""
    try:
        value = ast.literal_eval(text)
        return value, json.dumps(value, ensure_ascii=False, allow_nan=False) if type(value) is not str else ""
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None, ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _brackets(text: str) -> int:
    """The number of brackets that are open at most."""
    depth = most = 0
    for c in re.findall(r"[\[\](){}]", text):
        depth += 1 if c in "[({" else -1
        most = max(most, depth)
    return most
