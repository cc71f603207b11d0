"""The transcript of an answer with one choice, of which Responses and messages are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.answer.choice import UNANSWERED, Choice, add_part, choices_of, failure
from gateway.answer.logprobs import chat_logprobs
from gateway.answer.parts import STRIDE, Part, PartKind
from gateway.answer.plan import Plan
from gateway.errors import ApiError
from gateway.model import ServedModel
from services.messages import End, TokenEvent
from services.text import Tokenizer


@dataclass(slots=True)
class Item:
    """The parts of one kind, or of one call, that follow each other. `begin`, `end`: the numbers of its first and last
    piece (`Part.number`)."""

    kind: PartKind
    text: str
    begin: int
    end: int
    call: int = -1
    name: str | None = None


class Transcript:
    """The items and log probabilities of an answer with one choice so far, a function of its token events.

    `num_events` counts the events taken, including the end. `after`: the number of the last part that the client has
    received; later parts alone are given by `take`, also if the client has received other parts of the same token.
    """

    def __init__(self, choice: Choice, tokenizer: Tokenizer, with_logprobs: bool, after: int = -1) -> None:
        self._choice = choice
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._after = after
        self._parts: list[Part] = []  # that `take` has not given
        self.num_events = 0
        self.items: list[Item] = []
        self.logprobs: list[dict[str, Any]] = []
        self.end: End | None = None

    @property
    def text(self) -> str:
        """The content."""
        return "".join([item.text for item in self.items if item.kind is PartKind.TEXT])

    @property
    def called(self) -> bool:
        """Whether the answer so far has a call."""
        return self._choice.called

    @property
    def completion_tokens(self) -> int:
        return self._choice.completion_tokens

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens up to the end of the reasoning."""
        return self._choice.reasoning_tokens

    @property
    def error(self) -> ApiError | None:
        """Why the request ended without an answer."""
        return failure(self.end) if self.end else None

    def add(self, event: TokenEvent) -> None:
        """Take the next event. An end without an answer leaves the text as it is."""
        self.num_events = event.index + 1
        if event.end is not None:
            self.end = event.end
            if event.end.reason in UNANSWERED:
                return
        self._choice.add(event)
        if self._after > 0 and STRIDE * self.num_events <= self._after:
            self._collect(allow_empty=True)  # its parts are not joined with later ones

    def add_all(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.add(event)

    def take(self, allow_empty: bool = False) -> tuple[list[Part], list[dict[str, Any]]]:
        """The parts that became final since the last call, and the log probabilities of their tokens.

        Tokens without text wait for the next token with text, unless `allow_empty` is set or the answer has ended.
        """
        logprobs = self._collect(allow_empty or self.end is not None)
        parts, self._parts = self._parts, []
        return parts, logprobs

    def _collect(self, allow_empty: bool) -> list[dict[str, Any]]:
        """Add the choice's next delta to the items. Returns its log probabilities."""
        delta = self._choice.take(allow_empty)
        if delta is None:
            return []
        logprobs = []
        if self._with_logprobs:
            logprobs = chat_logprobs(self._tokenizer, delta.tokens, delta.logprobs)["content"]
            self.logprobs += logprobs
        for part in delta.parts:
            self._extend(part)
            if part.number <= self._after:
                continue
            if self._parts:
                add_part(self._parts, part)
            else:
                self._parts.append(part)
        return logprobs

    def _extend(self, part: Part) -> None:
        last = self.items[-1] if self.items else None
        if last is not None and last.kind is part.kind and last.call == part.call:
            last.text += part.text
            last.end = part.number
        else:
            self.items.append(Item(part.kind, part.text, part.begin, part.number, part.call, part.name))


def transcript_of(plan: Plan, model: ServedModel, after: int = -1) -> Transcript:
    """An empty transcript for the events of a request with one choice."""
    return Transcript(choices_of(plan, model)[0], model.tokenizer, plan.with_logprobs, after)
