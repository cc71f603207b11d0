"""MarkedCalls: calls after a mark, in any format that `call_format` describes.

What turns out not to be a call before its arguments begin is content. What follows then is read as written: arguments
are not checked. They end with their last bracket or tag or, if that is missing, with the mark of the end. An answer
that ends within an object after a mark has this call if its name is complete; otherwise the object is content, or if
calls precede it, left out. JSON objects with a name are read as calls after the mark of any format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.answer.parsers.call_format import CallFormat, JsonObject, Literals, NamedJson, Xml
from gateway.answer.parsers.json_call import JsonCall, NamedJsonCall
from gateway.answer.parsers.literal_call import LiteralCall
from gateway.answer.parsers.text_reader import NAME_CHARACTERS, CallReader, find
from gateway.answer.parsers.xml_call import XmlCall
from gateway.answer.parts import CALL, TEXT, Part, PartWriter, Trimmed

BETWEEN = frozenset(" \t\r\n,;[]}")  # allowed before, between and after calls

Types = Mapping[str, Mapping[str, str]]


class MarkedCalls:
    """A `Parser` of the calls of one format. `types`: see `Plan.types`."""

    def __init__(self, form: CallFormat, types: Types) -> None:
        self._form = form
        self._kind = form.also or form.call
        self._types = types
        self._begin, self._end = form.begins, form.ends
        self._opening = form.opening
        self._bare = form.bare  # a call may begin with this character now, without a mark
        self._writer = PartWriter()
        self._content = Trimmed(self._writer, TEXT)
        self._held = ""  # text that is not read yet
        self._at = 0
        self._final = False
        self._read: Callable[[], bool] = self._text
        self._raw: list[str] = []  # what becomes content if no call follows
        self._calls = 0
        self._in_block = False  # after `begin`, before `end`
        self._called = False  # a call has been read since the mark
        self._reader: CallReader | None = None
        self._begun = False  # the beginning of the call in `_reader` has been returned

    def push(self, text: str) -> list[Part]:
        if not self._held and not self._bare and self._read == self._text and self._begin[:1] not in text:
            self._content.add(text)  # what most tokens of most answers are
            return self._writer.take()
        self._held = self._held[self._at :] + text
        self._at = 0
        while self._at < len(self._held) and self._read():
            pass
        self._held, self._at = self._held[self._at :], 0
        return self._writer.take()

    def finish(self) -> list[Part]:
        self._final = True
        while self._at < len(self._held) and self._read():
            pass
        reader = self._reader
        if reader is not None and reader.name and not self._begun and self._in_block:
            self._begin_call(reader)
        if self._begun:
            self._end_call()
        elif not self._calls or not (self._in_block or self._read == self._between):
            self._content.add("".join(self._raw))
        self._content.finish()
        return self._writer.take()

    # Each of the following reads from `_at` on, and returns False to wait for more text.

    def _text(self) -> bool:
        """Text outside calls. The mark of the end can come here, if other text follows the last call."""
        if self._bare and self._may_be_bare():
            return True
        marks = (self._begin, self._end if self._in_block else "", self._opening)
        place, mark = find(self._held, self._at, marks, self._final)
        if place > self._at:
            self._content.add(self._held[self._at : place])
        self._at = place
        if mark and mark == self._opening:  # which is read with the call
            self._enter("")
            return True
        self._at += len(mark)
        if mark and mark == self._begin:
            self._enter(mark)
        elif mark:
            self._leave()
        return bool(mark)

    def _may_be_bare(self) -> bool:
        """Read what is before the first call of an answer; False where other text begins."""
        c = self._held[self._at]
        if c.isspace():
            self._content.add(c)
            self._at += 1
            return True
        opened = c == self._bare
        self._bare = ""
        if opened:
            self._called = True
            self._read = self._between
            self._raw = []
        return opened

    def _enter(self, mark: str) -> None:
        """The mark of the beginning was read."""
        self._bare, self._in_block, self._called = "", True, False
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

    def _between(self) -> bool:
        """Text after a mark, before, between and after calls."""
        text, at = self._held, self._at
        opening = self._kind.opening
        for mark in (self._begin, self._end if self._in_block else "", opening):
            if mark and text.startswith(mark, at):
                break
        else:
            mark = ""
            rest = text[at : at + 64]
            if not self._final and any(m.startswith(rest) for m in (self._begin, self._end, opening) if m):
                return False
        if mark and mark == opening:
            self._begin_reading(self._new_reader())
        elif mark == self._begin and mark:
            if not self._called:
                self._content.add("".join(self._raw))
            self._at += len(mark)
            self._enter(mark)
        elif mark:
            self._at += len(mark)
            self._leave()
        elif text[at] == "{":
            form = self._form.call
            self._begin_reading(JsonCall(form if isinstance(form, JsonObject) else JsonObject(), self._stops))
        elif text[at] in BETWEEN:
            if not (self._called and text[at] in self._form.after):
                self._raw.append(text[at])
            self._at += 1
        elif not opening and self._may_be_name and text[at] in NAME_CHARACTERS:
            self._begin_reading(self._new_reader())
        else:
            self._give_up()
        return True

    @property
    def _may_be_name(self) -> bool:
        """Whether a call may begin with its name here."""
        match self._kind:
            case JsonObject():
                return False
            case NamedJson():  # each call after a mark of its own
                return not self._called
        return True

    @property
    def _stops(self) -> tuple[str, ...]:
        """Marks that end a call whose own end is missing."""
        call = self._kind
        close = call.close[call.close.find("<") :] if isinstance(call, NamedJson) and call.close else ""
        return tuple(mark for mark in (close, self._end if self._in_block else "") if mark)

    def _new_reader(self) -> CallReader:
        call = self._kind
        match call:
            case JsonObject():
                return JsonCall(call, self._stops)
            case NamedJson():
                return NamedJsonCall(call, self._stops)
            case Xml():
                return XmlCall(call, self._types, self._stops)
            case Literals():
                return LiteralCall(call, self._stops)

    def _begin_reading(self, reader: CallReader) -> None:
        self._reader, self._begun = reader, False
        self._read = self._in_call

    def _give_up(self) -> None:
        """What was read since the last call is content, and so is what follows."""
        self._content.add("".join(self._raw))
        if self._opening and isinstance(self._reader, XmlCall):  # the mark of what is no call
            self._content.add(self._opening)
            self._at += len(self._opening)
        self._raw = []
        self._reader = None
        self._read = self._text

    def _in_call(self) -> bool:
        reader, begin = self._reader, self._at
        assert reader is not None
        self._at = reader.read(self._held, begin, self._final)
        if not self._begun:
            self._raw.append(self._held[begin : self._at])
            if reader.begun:
                self._begin_call(reader)
        if self._begun:
            self._writer.add(CALL, reader.take(), self._calls - 1)
        if reader.ended and not self._begun and self._form.needs_arguments:
            self._give_up()
        elif reader.ended:
            if not self._begun and reader.name:
                self._begin_call(reader)
                self._writer.add(CALL, "{}", self._calls - 1)
            if self._begun:
                self._end_call()
                self._read = self._between
            else:
                self._give_up()
        elif reader.broken and self._begun:
            self._end_call()
            self._read = self._between
        elif reader.broken:
            self._give_up()
        else:
            return self._at > begin
        return True

    def _begin_call(self, reader: CallReader) -> None:
        self._content.mark()
        self._writer.add(CALL, "", self._calls, reader.name)
        self._calls += 1
        self._begun = self._called = True
        self._raw = []

    def _end_call(self) -> None:
        assert self._reader is not None
        self._writer.add(CALL, self._reader.take(last=True), self._calls - 1)
        self._begun, self._reader = False, None
