"""JsonCalls: calls that are JSON objects after a mark.

`hermes` and `smollm2`: `<tool_call>`, an object or a list of objects, `</tool_call>`. `llama3_json`: an object at the
beginning of the answer, or after `<|python_tag|>`; further ones after `;`.

What turns out not to be a call before its arguments begin is content. What follows then is read as written: arguments
are not checked. They end with their last bracket or, if that is missing, with the mark of the end. An answer that ends
within an object after a mark has this call if its name is complete; otherwise the object is content, or if calls
precede it, left out.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.answer.parsers.call_object import CallObject
from gateway.answer.parts import CALL, TEXT, Part, PartWriter, Trimmed

BETWEEN = frozenset(" \t\r\n,;[]}")  # allowed before, between and after the objects of calls


class JsonCalls:
    """A `Parser` that reads calls after the mark `begin` and, if `bare`, at the beginning of the answer. `end` is the
    mark after calls, if there is one. `needs_arguments`: an object without arguments is not a call.
    """

    def __init__(self, begin: str, end: str = "", bare: bool = False, needs_arguments: bool = False) -> None:
        for mark in (begin, end):
            assert not mark or (mark[0] == begin[0] and mark[0] not in mark[1:]), f"marks are {begin!r} and {end!r}"
        self._begin, self._end = begin, end
        self._bare = bare  # whether a call may begin without a mark
        self._needs_arguments = needs_arguments
        self._writer = PartWriter()
        self._content = Trimmed(self._writer, TEXT)
        self._read: Callable[[str], None] = self._text
        self._mark = ""  # the beginning of a mark
        self._raw: list[str] = []  # what becomes content if no call follows
        self._calls = 0
        self._in_block = False  # after `begin`, before `end`
        self._called = False  # a call has been read since the mark
        self._object = CallObject()
        self._begun = False  # the beginning of the call in `_object` has been returned

    def push(self, text: str) -> list[Part]:
        if self._read == self._text and not self._mark and not self._bare and self._begin[0] not in text:
            self._content.add(text)  # what most tokens of most answers are
            return self._writer.take()
        at = 0
        while at < len(text):
            if self._begun and not self._mark and (end := self._object.run(text, at)) > at:
                at = end
            else:
                self._read(text[at])
                at += 1
        self._take_arguments()
        return self._writer.take()

    def finish(self) -> list[Part]:
        held, self._mark = self._mark, ""
        if self._begun:
            self._read_object(held)
            held = self._mark
        if self._in_block and self._read == self._in_object and self._object.name and not self._begun:
            self._begin_call()
        if self._begun:
            self._end_call()
        elif not (self._in_block and self._calls) or self._read == self._text:
            self._content.add("".join(self._raw) + held)
        self._content.finish()
        return self._writer.take()

    def _text(self, c: str) -> None:
        """The next character outside calls. The mark of the end can come here, if other text follows the last call."""
        found = self._marked(c)
        if found is None:
            return
        if found == self._begin:
            self._enter(found)
        elif found == self._end and found:
            self._leave()
        elif self._bare and found == "{" and not self._mark:
            self._bare = self._called = False
            self._begin_object(c)
        else:
            self._bare = self._bare and found.isspace()
            self._content.add(found)

    def _marked(self, c: str) -> str | None:
        """A mark that `c` completes, or text that is not part of a mark; None while it may be one."""
        held, tried = self._mark, self._mark + c
        marks = (self._begin, self._end) if self._in_block else (self._begin,)
        if tried in marks:
            self._mark = ""
            return tried
        if any(mark.startswith(tried) for mark in marks):
            self._mark = tried
            return None
        if not held:
            return c
        self._mark = c if any(mark.startswith(c) for mark in marks) else ""
        return held if self._mark else tried

    def _enter(self, mark: str) -> None:
        """The mark of the beginning was read."""
        self._bare, self._in_block, self._called = False, True, False
        self._raw = [mark]
        self._read = self._between

    def _leave(self) -> None:
        """The mark of the end was read."""
        if not self._called:
            self._content.add("".join(self._raw) + self._end)
        else:
            self._content.mark()
        self._raw, self._in_block = [], False
        self._read = self._text

    def _between(self, c: str) -> None:
        found = self._marked(c)
        if found is None:
            return
        if found == self._begin:
            if not self._called:
                self._content.add("".join(self._raw))
            self._enter(found)
        elif found == self._end and found:
            self._leave()
        else:
            self._between_objects(found[0])
            for rest in found[1:]:
                self._read(rest)

    def _between_objects(self, c: str) -> None:
        if c == "{":
            self._begin_object(c)
        elif c in BETWEEN:
            self._raw.append(c)
        else:
            self._give_up(c)

    def _begin_object(self, c: str) -> None:
        self._raw.append(c)
        self._object, self._begun = CallObject(), False
        self._read = self._in_object

    def _give_up(self, text: str) -> None:
        """What was read since the last call, and `text`, is content."""
        self._content.add("".join(self._raw))
        self._raw = []
        self._read = self._text
        self._content.add(text)

    def _in_object(self, c: str) -> None:
        if self._begun and self._end and not self._object.in_string:
            found = self._marked(c)
            if found == self._end:
                self._end_call()
                self._leave()
            elif found is not None:
                self._read_object(found)
            return
        self._read_object(c)

    def _read_object(self, text: str) -> None:
        for place, c in enumerate(text):
            self._object.read(c)
            if not self._begun:
                self._raw.append(c)
                if self._object.argued and self._object.name:
                    self._begin_call()
            if self._object.broken:
                self._break(text[place:])
                return
            if self._object.ended:
                self._end_object()
                for rest in text[place + 1 :]:
                    self._read(rest)
                return

    def _begin_call(self) -> None:
        self._content.mark()
        self._writer.add(CALL, "", self._calls, self._object.name)
        self._calls += 1
        self._begun = self._called = True
        self._raw = []

    def _break(self, rest: str) -> None:
        """The object continues with `rest`, which cannot be part of a call."""
        if self._begun:
            self._end_call()
            self._read = self._between
        else:
            self._raw.pop()
            self._content.add("".join(self._raw))
            self._raw = []
            self._read = self._text
        for c in rest:
            self._read(c)

    def _end_object(self) -> None:
        if not self._begun:
            if not self._object.name or self._needs_arguments:
                self._content.add("".join(self._raw))
                self._raw = []
                self._read = self._text
                return
            self._begin_call()
            self._writer.add(CALL, "{}", self._calls - 1)
        self._end_call()
        self._read = self._between

    def _take_arguments(self, last: bool = False) -> None:
        if self._begun:
            self._writer.add(CALL, self._object.take_arguments(last), self._calls - 1)

    def _end_call(self) -> None:
        self._take_arguments(last=True)
        self._begun = False
