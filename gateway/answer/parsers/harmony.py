"""Harmony: answers in messages on channels, as GPT-OSS writes them.

`<|channel|>analysis<|message|>` begins reasoning, `final` the content, and `commentary` a remark before calls, which is
content too. A message `to=functions.NAME` calls a tool; its text is the arguments. The recipient may be named before or
after the channel. `<|end|>`, `<|call|>` or `<|return|>` ends a message, and `<|start|>assistant` begins the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.answer.parsers.text_reader import LONGEST_HEAD, find
from gateway.answer.parts import CALL, REASONING, TEXT, Part, PartKind, PartWriter

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALLED, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALLED, RETURN)
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.:-]+)")
FUNCTION = "to=functions."
BETWEEN = "\n"  # messages of one kind that follow each other


class Harmony:
    """A `Parser` of messages. `tools`: calls are read as calls; otherwise they are content. `reasoning`: the analysis
    is reasoning; otherwise it is content. `open`: the prompt ends inside the analysis. An answer that does not begin
    like the head of a message is content: the prompt ends inside one.
    """

    def __init__(self, tools: bool, reasoning: bool, open: bool) -> None:
        self._tools, self._reasoning = tools, reasoning
        self._writer = PartWriter()
        self._held = ""
        self._at = 0
        self._final = False
        self._kind: PartKind = REASONING if reasoning and open else TEXT
        self._said: PartKind | None = None  # the kind of the last text
        self._separate = False  # another message of the same kind precedes
        self._argued = False  # the arguments have begun
        self._spaces = ""  # at the end of the arguments so far
        self._calls = 0
        self._read: Callable[[], bool] = self._body if open else self._beginning

    def push(self, text: str) -> list[Part]:
        self._held = self._held[self._at :] + text
        self._at = 0
        while self._at < len(self._held) and self._read():
            pass
        return self._writer.take()

    def finish(self) -> list[Part]:
        self._final = True
        while self._at < len(self._held) and self._read():
            pass
        return self._writer.take()

    # Each of the following reads from `_at` on, and returns False to wait for more text.

    def _beginning(self) -> bool:
        """The beginning of the answer: the rest of a head, or text."""
        text = self._held[self._at :]
        heads = (CHANNEL, START, MESSAGE, " to=")
        if any(text.startswith(head) for head in heads):
            self._read = self._head
        elif self._final or not any(head.startswith(text) for head in heads):
            self._kind, self._read = TEXT, self._body
        else:
            return False
        return True

    def _head(self) -> bool:
        """The head of a message. One without a message is left out."""
        place, mark = find(self._held, self._at, (MESSAGE, END, CALLED, RETURN), self._final)
        if place - self._at > LONGEST_HEAD:  # it is no head
            self._writer.add(TEXT, self._held[self._at])
            self._at += 1
            self._kind, self._read = TEXT, self._body
            return True
        if not mark and not self._final:
            return False
        head = self._held[self._at : place]
        self._at = place + len(mark)
        if mark == MESSAGE:
            self._begin_message(head)
        return True

    def _begin_message(self, head: str) -> None:
        channel = head.rpartition(CHANNEL)[2]
        found = RECIPIENT.search(head)
        self._read, self._argued, self._spaces = self._body, False, ""
        if found and found[1] != "assistant" and self._tools and FUNCTION in head:
            self._kind = CALL
            self._writer.add(CALL, "", self._calls, found[1])
            self._calls += 1
            self._said = None
            return
        thought = channel.startswith(ANALYSIS) or (found is not None and FUNCTION not in head)
        self._kind = REASONING if thought and self._reasoning else TEXT
        self._separate = self._said is self._kind

    def _body(self) -> bool:
        """The text of a message."""
        place, mark = find(self._held, self._at, (END, CALLED, RETURN, START, CHANNEL), self._final)
        text = self._held[self._at : place]
        self._at = place if mark in (START, CHANNEL) else place + len(mark)
        if self._kind is CALL:
            self._add_arguments(text)
        elif text:
            if self._separate:
                self._writer.add(self._kind, BETWEEN)
            self._separate, self._said = False, self._kind
            self._writer.add(self._kind, text)
        if mark:
            self._read = self._head
        return bool(mark)

    def _add_arguments(self, text: str) -> None:
        """Whitespace around arguments is left out."""
        text = text if self._argued else text.lstrip()
        body = text.rstrip()
        if body:
            self._writer.add(CALL, self._spaces + body, self._calls - 1)
            self._argued, self._spaces = True, text[len(body) :]
        else:
            self._spaces += text
