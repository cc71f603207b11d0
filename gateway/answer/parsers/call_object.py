"""CallObject: the JSON object of one call, read character by character: its name, and its arguments as written; and
CustomInput, which reads the text in them if the called tool is a custom one."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable

from gateway.tools import INPUT

ARGUMENTS = ("arguments", "parameters")
SPACE = " \t\r\n"
IN_STRING = re.compile(r'[^"\\]*')
OUTSIDE = re.compile(r'[^"{}\[\]<]*')
SCALAR = frozenset(string.ascii_letters + string.digits + "+-.")


class Composite:
    """Finds the end of a JSON object or array, after its opening bracket."""

    def __init__(self) -> None:
        self._depth = 1
        self._escaped = False
        self.in_string = False

    def run(self, text: str, at: int) -> int:
        """The index of the next character in `text`, from `at` on, that `ends` must see, or `<`, which begins marks."""
        if self._escaped:
            return at
        found = (IN_STRING if self.in_string else OUTSIDE).match(text, at)
        assert found is not None
        return found.end()

    def ends(self, character: str) -> bool:
        """Read the next character. Returns whether it closes the object or array."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self.in_string = False
        elif character == '"':
            self.in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return self._depth == 0


class CallObject:
    """`{"name": ..., "arguments": {...}}` after its opening brace; `parameters` is the same as `arguments`, other
    fields are ignored. Arguments that are a string hold the JSON of the arguments, arguments that are null count as
    missing.

    `name`: empty until it is known. `argued`: the arguments have begun. `ended`: the object is complete. `broken`: it
    is not such an object; the last character read does not belong to it.
    """

    def __init__(self, name: str = "", named: str = "name", argued: tuple[str, ...] = ARGUMENTS) -> None:
        """`name`: the name of the call, if it is known; then only the arguments follow. `named`: the member with the
        name; empty: the first member is the arguments, and its key the name. `argued`: the members with the
        arguments."""
        self.name = name
        self._named = named
        self._alone = bool(name)
        self.argued = self.ended = self.broken = False
        self._read: Callable[[str], None] = self._value if name else self._key
        self._after_string: Callable[[str], None] = self._end_key
        self._written: list[str] = []  # of the string or scalar that is being read
        self._members = argued
        self._field = argued[0]
        self._composite: Composite | None = None
        self._escaped = False
        self._escape = ""  # of arguments that are a string
        self._arguments: list[str] = []

    @property
    def in_string(self) -> bool:
        if self._composite is not None:
            return self._composite.in_string
        return self._read in (self._string, self._string_of_arguments)

    def read(self, character: str) -> None:
        """The next character; not after `ended` or `broken`."""
        self._read(character)

    def run(self, text: str, at: int) -> int:
        """Read the text from index `at` on that is certainly part of the arguments. Returns the index of its end."""
        if self._composite is None or self._read != self._composite_of_arguments:
            return at
        end = self._composite.run(text, at)
        self._arguments.append(text[at:end])
        return end

    def take_arguments(self, last: bool = False) -> str:
        """The arguments since the last call. Half of a character is held back unless it is the `last` call."""
        taken = "".join(self._arguments)
        self._arguments.clear()
        if taken and not last and "\ud800" <= taken[-1] <= "\udbff":
            self._arguments.append(taken[-1])
            taken = taken[:-1]
        return taken if taken.isascii() else _whole(taken)

    def _key(self, c: str) -> None:
        if c == '"':
            self._begin_string(self._end_key)
        elif c == "}":
            self.ended = True
        elif c not in SPACE:
            self.broken = True

    def _end_key(self, key: str) -> None:
        if not self._named and not self.name:  # the key of the arguments is the name
            self.name, key = _whole(key), self._members[0]
        self._field = key
        self._read = self._colon

    def _colon(self, c: str) -> None:
        if c == ":":
            self._read = self._value
        elif c not in SPACE:
            self.broken = True

    def _value(self, c: str) -> None:
        if c in SPACE:
            return
        arguments = self._field in self._members and not self.argued
        naming = self._field == self._named and not self.name
        if (naming and c != '"') or (self._alone and c != "{"):
            self.broken = True
        elif c in "{[":
            self._composite = Composite()
            self._read = self._composite_of_arguments if arguments else self._skipped_composite
            self._argue(c, arguments)
        elif c == '"' and arguments:
            self._argue("", True)
            self._read = self._string_of_arguments
        elif c == '"':
            self._begin_string(self._end_name if naming else self._end_value)
        elif c in SCALAR:
            self._written = [c]
            self._read = self._scalar
        else:
            self.broken = True

    def _next(self, c: str) -> None:
        if c == ",":
            self._read = self._key
        elif c == "}":
            self.ended = True
        elif c not in SPACE:
            self.broken = True

    def _begin_string(self, then: Callable[[str], None]) -> None:
        self._written, self._escaped = [], False
        self._after_string = then
        self._read = self._string

    def _string(self, c: str) -> None:
        if c == '"' and not self._escaped:
            self._after_string(_unescaped("".join(self._written)))
            return
        self._escaped = c == "\\" and not self._escaped
        self._written.append(c)

    def _end_name(self, name: str) -> None:
        self.name = _whole(name)
        self.broken = not name
        self._read = self._next

    def _end_value(self, _: str) -> None:
        self._read = self._next

    def _scalar(self, c: str) -> None:
        if c in SCALAR:
            self._written.append(c)
            return
        written = "".join(self._written)
        if self._field in self._members and not self.argued and written != "null":
            self._argue(written, True)
        self._read = self._next
        self._next(c)

    def _skipped_composite(self, c: str) -> None:
        assert self._composite is not None
        if self._composite.ends(c):
            self._composite, self._read = None, self._next
            self.ended = self._alone

    def _composite_of_arguments(self, c: str) -> None:
        self._arguments.append(c)
        self._skipped_composite(c)

    def _argue(self, text: str, arguments: bool) -> None:
        if arguments:
            self.argued = True
            self._arguments.append(text)

    def _string_of_arguments(self, c: str) -> None:
        """An escape is held back until it is complete; one that is not JSON is kept as written."""
        escape = self._escape
        if not escape:
            if c == '"':
                self._read = self._next
            elif c == "\\":
                self._escape = c
            else:
                self._arguments.append(c)
        elif len(escape) == 1:
            self._escape = escape + c if c == "u" else ""
            if c != "u":
                self._arguments.append(_unescaped(escape + c))
        elif c not in string.hexdigits:
            self._arguments.append(escape)
            self._escape = ""
            self._string_of_arguments(c)
        else:
            self._escape = escape + c
            if len(self._escape) == 6:
                self._arguments.append(_unescaped(self._escape))
                self._escape = ""


def _unescaped(written: str) -> str:
    """The text of a JSON string, from what is written between its quotes; unchanged if that is not valid. It can be a
    lone surrogate, if a character is written as two escapes."""
    try:
        text: str = json.loads(f'"{written}"', strict=False)
    except ValueError:
        return written
    return text


def _whole(text: str) -> str:
    """`text` with pairs of surrogates joined to characters, and lone surrogates replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class CustomInput:
    """Reads the input of a custom tool: the text in the arguments `{"input": TEXT}` of a call, as JSON in pieces. What
    it returns depends on their text only, not on how it is cut."""

    def __init__(self) -> None:
        self._object = CallObject(argued=(INPUT,))
        self._opened = False

    def read(self, arguments: str) -> str:
        """Return the text in the next piece of the arguments. An escape is held back until it is complete."""
        for character in arguments:
            if not self._opened:
                self._opened = character == "{"
            elif not (self._object.ended or self._object.broken):
                self._object.read(character)
        return self._object.take_arguments()
