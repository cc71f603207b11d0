"""The output items of an answer with one choice, and the events that make them: an item is added, gains text, is done.

The answers and streams of the Responses API and of Anthropic's Messages API are made of them. The numbers of events are
functions of token indices. They do not depend on how tokens are grouped, on the gateway or on where a stream was
resumed. They count from the API's last opening event, n is a number of token events (including the end):

- Without a parser the answer is one text, which the opening events add. A piece of it has the number n up to the piece.
  The closing events follow n up to the end.
- With a parser a part has the number `PLACES` * `Part.number`. The `PLACES` - 1 numbers after that of an item's last
  part are for the events that end it and add the next item; those that add the first item follow 0. The last events of
  the stream follow `PLACES` * `STRIDE` * (n + 1), n up to the end.

Numbers increase, with gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gateway.answer.choice import UNANSWERED, Choice, choices_of, failure
from gateway.answer.logprobs import chat_logprobs
from gateway.answer.parts import STRIDE, TEXT, Part, PartKind
from gateway.answer.plan import Plan
from gateway.errors import ApiError
from gateway.model import ServedModel
from gateway.schemas.answers import TokenLogprob
from services.messages import End, Logprobs, TokenEvent
from services.text import Tokenizer

PLACES = 8  # numbers of events per number of a part
DONE_PLACE, ADDED_PLACE = 1, 4  # of the first event that ends an item, and of the first one that adds the next


@dataclass(slots=True)
class OutputItem:
    """The parts of one kind, or of one call, that follow each other. `index`: its place among the items. `logprobs`: of
    the tokens of a text; empty unless requested."""

    index: int
    kind: PartKind
    call: int = -1
    name: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def is_call(self) -> bool:
        return self.call >= 0

    @property
    def called(self) -> str:
        """The name of the called tool. Only of calls."""
        assert self.name is not None, f"a {self.kind} has no name"
        return self.name

    def continued_by(self, part: Part) -> bool:
        return self.kind is part.kind and self.call == part.call

    def add(self, text: str, logprobs: list[TokenLogprob]) -> None:
        self._texts.append(text)
        if logprobs:
            self.logprobs += logprobs


class Change(Enum):
    ADDED = "added"
    DELTA = "delta"
    DONE = "done"


ADDED, DELTA, DONE = Change  # reading a member of an enum is slow, and each token of each stream takes this path

# The change; its item; the number of its first event, which up to two more follow; and what the item gains, perhaps
# nothing: text and log probabilities. A plain tuple is made fastest: each token of each stream makes one.
ItemEvent = tuple[Change, OutputItem, int, str, Sequence[TokenLogprob]]


class Transcript:
    """The items of an answer with one choice so far, a function of its token events.

    Without a parser it is one text from the beginning. With a parser the items begin with their first parts, and an
    answer that ends without any is one empty text. `num_events` counts the token events taken, including the end.
    """

    def __init__(self, choice: Choice, tokenizer: Tokenizer, with_logprobs: bool) -> None:
        self.choice = choice
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._tokens: list[int] = []  # whose log probabilities wait for the part that they belong to
        self._logprobs: list[Logprobs] = []  # parallel to them
        self._scored = 0  # number of token events before them
        self._last = 0  # the number of the last delta
        self.num_events = 0
        self.items = [] if choice.parsed else [OutputItem(0, TEXT)]
        self.end: End | None = None

    @property
    def cut(self) -> bool:
        """Whether the answer has ended within the arguments of its last call, which the model did not end."""
        return self.end is not None and self.choice.cut_by(self.end)

    @property
    def error(self) -> ApiError | None:
        """Why the request ended without an answer."""
        return failure(self.end) if self.end else None

    @property
    def last_number(self) -> int:
        """The last events of the stream have the numbers after this one."""
        return last_number(self.choice.parsed, self.num_events)

    def add(self, event: TokenEvent) -> None:
        """Take the next event. An end without an answer leaves the items as they are."""
        self.num_events = event.index + 1
        if event.end is not None:
            self.end = event.end
            if event.end.reason in UNANSWERED:
                return
        self.choice.add(event)

    def add_all(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.add(event)

    def events_of(self, events: Iterable[TokenEvent], after: int) -> list[ItemEvent]:
        """Take the next token events and return what they change. The last item is not done. `after`: the number of the
        last event that the client has received; the tokens up to it are taken one by one, so that the next delta begins
        after it."""
        made: list[ItemEvent] = []
        scale = PLACES * STRIDE if self.choice.parsed else 1
        for event in events:
            self.add(event)
            if scale * self.num_events <= after:
                made += self.take(allow_empty=True)
        return made + self.take() if made else self.take()

    def take(self, allow_empty: bool = False) -> list[ItemEvent]:
        """What the items have gained since the last call, in order.

        Tokens without text wait for the next token with text, unless `allow_empty` is set or the answer has ended.
        """
        delta = self.choice.take(allow_empty or self.end is not None)
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
            return [(DELTA, self.items[0], self.num_events, delta.text, logprobs)]
        made: list[ItemEvent] = []
        for part in delta.parts:
            self._add_part(part, made)
        if delta.finish_reason is not None and not self.items:
            self._add_part(Part(TEXT, "", number=STRIDE * self.num_events), made)
        return made

    def done(self) -> list[ItemEvent]:
        """The event that ends the last item, if there is one."""
        last = self._last if self.choice.parsed else self.last_number
        return [(DONE, self.items[-1], last + DONE_PLACE, "", ())] if self.items else []

    def _add_part(self, part: Part, made: list[ItemEvent]) -> None:
        """The tokens of a part are those after the tokens of the part before it. Only a text keeps their log
        probabilities."""
        if not (self.items and self.items[-1].continued_by(part)):
            if self.items:
                made.append((DONE, self.items[-1], self._last + DONE_PLACE, "", ()))
            self.items.append(OutputItem(len(self.items), part.kind, part.call, part.name))
            made.append((ADDED, self.items[-1], self._last + ADDED_PLACE, "", ()))
        count = part.number // STRIDE - self._scored
        self._scored += count
        logprobs = self._take_logprobs(count) if self._tokens else []
        if part.kind is not TEXT:
            logprobs = []
        self.items[-1].add(part.text, logprobs)
        self._last = PLACES * part.number
        made.append((DELTA, self.items[-1], self._last, part.text, logprobs))

    def _take_logprobs(self, count: int) -> list[TokenLogprob]:
        """The log probabilities of the first `count` tokens that wait."""
        made = chat_logprobs(self._tokenizer, self._tokens[:count], self._logprobs[:count])["content"]
        del self._tokens[:count], self._logprobs[:count]
        return made


def transcript_of(plan: Plan, model: ServedModel) -> Transcript:
    """An empty transcript for the events of a request with one choice."""
    return Transcript(choices_of(plan, model)[0], model.tokenizer, plan.with_logprobs)


def last_number(parsed: bool, num_events: int) -> int:
    """The highest number of an event of an answer with `num_events` token events, except for the last events of the
    stream. It limits the numbers that a client may send."""
    return PLACES * STRIDE * (num_events + 1) if parsed else num_events
