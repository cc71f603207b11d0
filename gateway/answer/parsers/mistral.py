"""Mistral's calls: `[TOOL_CALLS]`, then a list of JSON objects, or `name[ARGS]{...}` with each call after its own mark.

Between name and arguments there may be `[CALL_ID]` and an id, or nothing.
"""

from __future__ import annotations

import string
from collections.abc import Callable

from gateway.answer.parsers.call_object import SPACE, CallObject
from gateway.answer.parsers.json_calls import JsonCalls

NAME = frozenset(string.ascii_letters + string.digits + "_-.:")
ARGS, CALL_ID = "[ARGS]", "[CALL_ID]"


class MistralCalls(JsonCalls):
    """A `Parser` of both formats."""

    def __init__(self) -> None:
        super().__init__("[TOOL_CALLS]")
        self._name = ""
        self._inner_mark = ""

    def _enter(self, mark: str) -> None:
        super()._enter(mark)
        self._name = ""
        self._read = self._before_call

    def _before_call(self, c: str) -> None:
        if c in SPACE:
            self._raw.append(c)
        elif c in NAME:
            self._read = self._in_name
            self._in_name(c)
        else:
            self._read = self._between
            self._between(c)

    def _in_name(self, c: str) -> None:
        if c in NAME:
            self._name += c
            self._raw.append(c)
        else:
            self._after_name(c)

    def _after_name(self, c: str) -> None:
        if c == "[":
            self._raw.append(c)
            self._inner_mark = c
            self._read = self._in_mark
        else:
            self._object, self._begun = CallObject(self._name), False
            self._read = self._in_object
            self._in_object(c)

    def _in_mark(self, c: str) -> None:
        self._inner_mark += c
        if not any(mark.startswith(self._inner_mark) for mark in (ARGS, CALL_ID)):
            self._give_up_at(c)
            return
        self._raw.append(c)
        if self._inner_mark == ARGS:
            self._object, self._begun = CallObject(self._name), False
            self._read = self._in_object
        elif self._inner_mark == CALL_ID:
            self._read = self._in_id

    def _in_id(self, c: str) -> None:
        if c.isalnum():
            self._raw.append(c)
        else:
            self._after_name(c)

    def _give_up_at(self, c: str) -> None:
        """`c` and what follows is content, or begins a call again."""
        self._give_up("")
        read: Callable[[str], None] = self._read
        read(c)
