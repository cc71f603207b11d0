"""The transcript of an answer with one choice, of which Responses and messages are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def continued_by(self, part: Part) -> bool:
        return self.kind is part.kind and self.call == part.call

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._texts.append(text)
        if logprobs:
            self.logprobs += logprobs


# What an item has gained: the item; text, which is empty if a call has only its name; `Part.number`, without a parser
# the number of token events; and log probabilities. A plain tuple is made fastest: each token of each stream makes one.
Addition = tuple[Item, str, int, list[dict[str, Any]]]


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
    def calls_tools(self) -> bool:
        """Whether the answer has ended with calls that the client is to run."""
        return self._choice.calls_tools

    @property
    def cut(self) -> bool:
        """Whether the answer has ended within the arguments of its last call, which the model did not end."""
        return self.end is not None and self._choice.cut_by(self.end)

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
        if delta.parts is None:
            logprobs = self._take_logprobs(len(self._tokens)) if self._tokens else []
            if not (delta.text or logprobs):
                return []
            self.items[0].add(delta.text, logprobs)
            return [(self.items[0], delta.text, self.num_events, logprobs)]
        additions = [self._add_part(part) for part in delta.parts]
        if delta.finish_reason is not None and not self.items:
            additions.append(self._add_part(Part(PartKind.TEXT, "", STRIDE * self.num_events)))
        return additions

    def _add_part(self, part: Part) -> Addition:
        """The tokens of a part are those after the tokens of the part before it. Only a text keeps their log
        probabilities."""
        if not (self.items and self.items[-1].continued_by(part)):
            self.items.append(Item(len(self.items), part.kind, part.call, part.name))
        count = part.number // STRIDE - self._scored
        self._scored += count
        logprobs = self._take_logprobs(count) if self._tokens else []
        if part.kind is not PartKind.TEXT:
            logprobs = []
        self.items[-1].add(part.text, logprobs)
        return self.items[-1], part.text, part.number, logprobs

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
