"""Thinking: the reasoning at the beginning of an answer, between `<think>` and `</think>`, before what another parser
reads."""

from __future__ import annotations

from gateway.answer.parts import REASONING, TEXT, Parser, Part, PartWriter, Trimmed

BEGIN, END = "<think>", "</think>"


class Thinking:
    """A `Parser` of reasoning. `rest` reads what follows it; None: all of that is content. `open`: the prompt ends
    inside the reasoning, so that the answer begins with it; otherwise an answer may begin with `<think>`.

    Reasoning that never ends is the whole answer. Whitespace beside the marks is left out.
    """

    def __init__(self, rest: Parser | None = None, open: bool = False) -> None:
        self._rest = rest
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
            if self._mark == BEGIN:
                self._open, self._mark = True, ""
                self._spaces.clear()
                return text[place + 1 :]
            if not BEGIN.startswith(self._mark):
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
        end = text.find(END)
        if end >= 0:
            self._reasoning.add(text[:end])
            self._reasoning.mark()
            self._open, self._mark = False, ""
            self._ended = self._after_mark = True
            return text[end + len(END) :]
        begun = text.rfind(END[0], max(0, len(text) - len(END) + 1))
        held = begun if begun >= 0 and END.startswith(text[begun:]) else len(text)
        self._reasoning.add(text[:held])
        self._mark = text[held:]
        return ""

    def _push_rest(self, text: str) -> list[Part]:
        if self._after_mark:
            text = text.lstrip()
            self._after_mark = not text
        if not text:
            return []
        return [Part(TEXT, text)] if self._rest is None else self._rest.push(text)


def _joined(parts: list[Part], more: list[Part]) -> list[Part]:
    """Both lists, with their neighbours joined if they are of one kind."""
    writer = PartWriter()
    for part in [*parts, *more]:
        writer.add(part.kind, part.text, part.call, part.name)
    return writer.take()
