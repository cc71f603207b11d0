"""The transcript of an answer with one choice, of which Responses and messages are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.answer.choice import UNANSWERED, Choice, choices_of, failure
from gateway.answer.logprobs import chat_logprobs
from gateway.answer.parts import STRIDE, Part, PartKind
from gateway.answer.plan import Plan
from gateway.errors import ApiError
from gateway.model import ServedModel
from services.messages import End, Logprobs, TokenEvent
from services.text import Tokenizer


@dataclass(slots=True)
class Item:
    """The parts of one kind, or of one call, that follow each other. `index`: its place among the items. `logprobs`: of
    the tokens of a text; empty unless requested."""

    index: int
    kind: PartKind
    call: int = -1
    name: str | None = None
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def continued_by(self, part: Part) -> bool:
        return self.kind is part.kind and self.call == part.call


class Addition(NamedTuple):
    """What an item has gained: text, which is empty if a call has only its name, and log probabilities. `number`:
    `Part.number` of an answer with a parser."""

    item: Item
    text: str
    number: int
    logprobs: list[dict[str, Any]]


class Transcript:
    """The items of an answer with one choice so far, a function of its token events.

    Without a parser it is one text from the beginning. With a parser the items begin with their first parts, and an
    answer that ends without any is one empty text. `num_events` counts the events taken, including the end.
    """

    def __init__(self, choice: Choice, tokenizer: Tokenizer, with_logprobs: bool) -> None:
        self._choice = choice
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._tokens: list[int] = []  # whose log probabilities wait for the part that they belong to
        self._logprobs: list[Logprobs] = []  # parallel to them
        self._scored = 0  # number of token events before them
        self.num_events = 0
        self.items = [] if choice.parsed else [Item(0, PartKind.TEXT)]
        self.end: End | None = None

    @property
    def parsed(self) -> bool:
        return self._choice.parsed

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
        """Take the next event. An end without an answer leaves the items as they are."""
        self.num_events = event.index + 1
        if event.end is not None:
            self.end = event.end
            if event.end.reason in UNANSWERED:
                return
        self._choice.add(event)

    def add_all(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.add(event)

    def take(self, allow_empty: bool = False) -> list[Addition]:
        """What the items have gained since the last call, in order.

        Tokens without text wait for the next token with text, unless `allow_empty` is set or the answer has ended.
        """
        delta = self._choice.take(allow_empty or self.end is not None)
        if delta is None:
            return []
        if self._with_logprobs:
            self._tokens += delta.tokens
            self._logprobs += delta.logprobs
        if delta.parsed is None:
            logprobs = self._take_logprobs(len(self._tokens)) if self._tokens else []
            return [self._add(self.items[0], delta.text, delta.number, logprobs)] if delta.text or logprobs else []
        additions = [self._add_part(part) for part in delta.parsed]
        if delta.finish_reason is not None and not self.items:
            additions.append(self._add_part(Part(PartKind.TEXT, "", delta.number)))
        return additions

    def _add_part(self, part: Part) -> Addition:
        """The tokens of a part are those after the tokens of the part before it. Only a text keeps their log
        probabilities."""
        if not (self.items and self.items[-1].continued_by(part)):
            self.items.append(Item(len(self.items), part.kind, part.call, part.name))
        count = part.number // STRIDE - self._scored
        self._scored += count
        logprobs = self._take_logprobs(count) if self._tokens else []
        return self._add(self.items[-1], part.text, part.number, logprobs if part.kind is PartKind.TEXT else [])

    def _add(self, item: Item, text: str, number: int, logprobs: list[dict[str, Any]]) -> Addition:
        item.text += text
        item.logprobs += logprobs
        return Addition(item, text, number, logprobs)

    def _take_logprobs(self, count: int) -> list[dict[str, Any]]:
        """The log probabilities of the first `count` tokens that wait."""
        made: list[dict[str, Any]] = chat_logprobs(self._tokenizer, self._tokens[:count], self._logprobs[:count])[
            "content"
        ]
        del self._tokens[:count], self._logprobs[:count]
        return made


def transcript_of(plan: Plan, model: ServedModel) -> Transcript:
    """An empty transcript for the events of a request with one choice."""
    return Transcript(choices_of(plan, model)[0], model.tokenizer, plan.with_logprobs)
