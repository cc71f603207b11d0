"""Thinking: the reasoning at the beginning of an answer, between two marks such as `<think>` and `</think>`, before
what another parser reads."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.answer.parsers.text_reader import find
from gateway.answer.parts import REASONING, TEXT, Parser, Part, PartWriter, Trimmed


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The marks around the reasoning. `answer_begin`, `answer_end`: those around the content after it, if a family
    writes them; they are left out."""

    begin: str = "<think>"
    end: str = "</think>"
    answer_begin: str = ""
    answer_end: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.begin, self.end, self.answer_begin, self.answer_end)))


class Thinking:
    """A `Parser` of reasoning. `rest` reads what follows it; None: all of that is content. `open`: the prompt ends
    inside the reasoning, so that the answer begins with it; otherwise an answer may begin with the mark.

    Reasoning that never ends is the whole answer. Whitespace beside the marks is left out.
    """

    def __init__(self, form: ReasoningFormat, rest: Parser | None = None, open: bool = False) -> None:
        self._begin, self._end = form.begin, form.end
        self._rest = Unwrapped(form, rest) if form.answer_begin else rest
        self._writer = PartWriter()
        self._reasoning = Trimmed(self._writer, REASONING, after_mark=True)
        self._open = open  # inside the reasoning
        self._ended = False  # what follows is not reasoning
        self._after_mark = False  # nothing but whitespace has followed the end of the reasoning
        self._mark = ""  # the beginning of a mark
        self._spaces: list[str] = []  # before a first mark

    def push(self, text: str) -> list[Part]:
        if self._ended and not self._after_mark:
            return [Part(TEXT, text)] if self._rest is None else self._rest.push(text)
        if not (self._open or self._ended):
            text = self._before(text)
        if self._open:
            text = self._inside(text)
        return self._writer.take() + self._push_rest(text)

    def finish(self) -> list[Part]:
        held, self._mark = "".join(self._spaces) + self._mark, ""
        if self._open:
            self._reasoning.add(held)
            self._reasoning.finish()
            held = ""
        parts = self._writer.take() + self._push_rest(held)
        return parts if self._rest is None else _joined(parts, self._rest.finish())

    def _before(self, text: str) -> str:
        """Read up to the beginning of the reasoning. Returns what follows it, or all of the text if there is none."""
        for place, c in enumerate(text):
            self._mark += c
            if self._mark == self._begin:
                self._open, self._mark = True, ""
                self._spaces.clear()
                return text[place + 1 :]
            if not self._begin.startswith(self._mark):
                if self._mark.isspace():
                    self._spaces.append(self._mark)
                    self._mark = ""
                    continue
                self._ended = True
                held, self._mark = "".join(self._spaces) + self._mark, ""
                self._spaces.clear()
                return held + text[place + 1 :]
        return ""

    def _inside(self, text: str) -> str:
        """Read up to the end of the reasoning. Returns what follows it."""
        text = self._mark + text
        place, found = find(text, 0, (self._end,), final=False)
        self._reasoning.add(text[:place])
        if not found:
            self._mark = text[place:]
            return ""
        self._reasoning.mark()
        self._open, self._mark = False, ""
        self._ended = self._after_mark = True
        return text[place + len(found) :]

    def _push_rest(self, text: str) -> list[Part]:
        if self._after_mark:
            text = text.lstrip()
            self._after_mark = not text
        if not text:
            return []
        return [Part(TEXT, text)] if self._rest is None else self._rest.push(text)


class Unwrapped:
    """A `Parser` of what follows the reasoning, without the marks around the content. `rest` reads what is between
    them; None: all of it is content."""

    def __init__(self, form: ReasoningFormat, rest: Parser | None) -> None:
        self._marks = (form.answer_begin, form.answer_end)
        self._rest = rest
        self._held = ""
        self._writer = PartWriter()
        self._content = Trimmed(self._writer, TEXT)

    def push(self, text: str) -> list[Part]:
        return self._read(self._held + text, final=False)

    def finish(self) -> list[Part]:
        self._read(self._held, final=True)
        self._take(self._rest.finish() if self._rest else [])
        self._content.finish()
        return self._writer.take()

    def _read(self, text: str, final: bool) -> list[Part]:
        while True:
            place, mark = find(text, 0, self._marks, final)
            if place:
                self._take(self._rest.push(text[:place]) if self._rest else [Part(TEXT, text[:place])])
            text = text[place + len(mark) :]
            if not mark:
                break
            self._content.mark()
        self._held = text
        return [] if final else self._writer.take()

    def _take(self, parts: list[Part]) -> None:
        for part in parts:
            if part.kind is TEXT:
                self._content.add(part.text)
            else:
                self._writer.add(part.kind, part.text, part.call, part.name)


def _joined(parts: list[Part], more: list[Part]) -> list[Part]:
    """Both lists, with their neighbours joined if they are of one kind."""
    writer = PartWriter()
    for part in [*parts, *more]:
        writer.add(part.kind, part.text, part.call, part.name)
    return writer.take()
