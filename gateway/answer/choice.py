"""One choice of an answer: tokens become deltas of text, held back while a stop string or a character is incomplete.

The events of all three APIs are made of these deltas. A parser of what a model family writes besides text (tool calls,
reasoning) belongs between the detokenizer and `Delta`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.answer.logprobs import chat_logprobs
from gateway.answer.plan import Plan
from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from services.messages import End, Logprobs, PromptLogprobs, TokenEvent
from services.requests import NO_GRAMMAR, NO_TOKEN_LEFT, FinishReason
from services.text import Detokenizer, TextTables, Tokenizer

UNANSWERED = (FinishReason.CANCELLED, FinishReason.ERROR)


@dataclass(frozen=True, slots=True)
class Delta:
    """What a choice has gained since the last delta: text that is final, and all tokens."""

    text: str
    tokens: list[int]
    logprobs: list[Logprobs]  # parallel to tokens; empty unless requested
    finish_reason: str | None = None  # "stop" or "length" in the last delta
    first: bool = False  # the first delta of the choice


class Choice:
    """Choice `index` of a request. `sent` counts the events (tokens and the end) that the client has received.

    A stream can resume: events before the initial `sent` are decoded but not included in any delta.
    """

    __slots__ = (
        "_detokenizer",
        "_end",
        "_logprobs",
        "_silent",
        "_text",
        "_tokens",
        "added",
        "completion_tokens",
        "error",
        "index",
        "prompt_logprobs",
        "sent",
    )

    def __init__(
        self,
        index: int,
        tables: TextTables,
        stops: tuple[str, ...],
        stop_ids: frozenset[int],
        sent: int = 0,
        include_stop: bool = False,
        silent: bool = False,
    ) -> None:
        """`stop_ids`: the tokens that end this choice, including EOS. Their text is removed from the answer
        (`End.cut`) unless `include_stop` is set, which also keeps the text of a stop string. `silent`: the tokens are
        not part of the answer."""
        self.index = index
        self.sent = sent
        self.added = 0  # number of events taken
        self.completion_tokens = 0
        self.error: ApiError | None = None  # why the choice ended without an answer
        self.prompt_logprobs: PromptLogprobs | None = None  # arrive with the first token, if requested
        self._silent = silent
        self._detokenizer = Detokenizer(tables, stops, stop_ids, include_stop)
        self._text = ""
        self._tokens: list[int] = []
        self._logprobs: list[Logprobs] = []
        self._end: End | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens that were not computed for this choice; 0 until it ends."""
        return self._end.cached if self._end else 0

    def add(self, event: TokenEvent) -> None:
        """Take the next event."""
        assert event.index == self.added, f"event {event.index} of {event.id} after {self.added} events"
        self.added += 1
        fresh = event.index >= self.sent
        text = ""
        if event.logprobs is not None and event.logprobs.prompt is not None:
            self.prompt_logprobs = event.logprobs.prompt
        if event.token is not None and not self._silent:
            self.completion_tokens += 1
            text = self._detokenizer.push((event.token,))
            if fresh:
                self._tokens.append(event.token)
                if event.logprobs is not None:
                    self._logprobs.append(event.logprobs)
        if event.end is not None:
            text += self._finish(event.end)
        if fresh:
            self._text += text

    def take(self, allow_empty: bool = False) -> Delta | None:
        """What came since the last delta. None while there is no text, unless the choice has ended; with
        `allow_empty`, tokens without text also make a delta."""
        if self.added <= self.sent or not (self._text or self.ended or (allow_empty and self._tokens)):
            return None
        reason = self._end.reason.value if self._end else None
        delta = Delta(self._text, self._tokens, self._logprobs, reason, first=not self.sent)
        self._text, self._tokens, self._logprobs = "", [], []
        self.sent = self.added
        return delta

    def _finish(self, end: End) -> str:
        self.error = failure(end)
        if self.error is not None:
            return ""
        self._end = end
        return self._detokenizer.finish(end.cut)


class Transcript:
    """The text and log probabilities of an answer with one choice so far, a function of its token events.

    `num_events` counts the events taken, including the end.
    """

    def __init__(self, choice: Choice, tokenizer: Tokenizer, with_logprobs: bool) -> None:
        self._choice = choice
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self.num_events = 0
        self.text = ""
        self.logprobs: list[dict[str, Any]] = []
        self.end: End | None = None

    @property
    def completion_tokens(self) -> int:
        return self._choice.completion_tokens

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

    def add_all(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.add(event)

    def take(self, allow_empty: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """The text that became final since the last call, and the log probabilities of its tokens.

        Tokens without text wait for the next token with text, unless `allow_empty` is set or the answer has ended.
        """
        delta = self._choice.take(allow_empty or self.end is not None)
        if delta is None:
            return "", []
        logprobs = []
        if self._with_logprobs:
            logprobs = chat_logprobs(self._tokenizer, delta.tokens, delta.logprobs)["content"]
        self.text += delta.text
        self.logprobs += logprobs
        return delta.text, logprobs


def choices_of(plan: Plan, model: ServedModel, sent: tuple[int, ...] = ()) -> list[Choice]:
    """The choices of a request. `sent`: the number of events of each choice that the client has received."""
    tables = tables_of(plan, model)
    eos = frozenset() if plan.ignore_eos else model.info.eos_token_ids
    stop_ids = eos.union(plan.stop_token_ids)
    counts = [*sent, *[0] * (plan.choices - len(sent))]
    return [
        Choice(i, tables, plan.stop, stop_ids, counts[i], plan.include_stop, plan.silent) for i in range(plan.choices)
    ]


def transcript_of(plan: Plan, model: ServedModel) -> Transcript:
    """An empty transcript for the events of a request with one choice."""
    return Transcript(choices_of(plan, model)[0], model.tokenizer, plan.with_logprobs)


def tables_of(plan: Plan, model: ServedModel) -> TextTables:
    """The text of each token, with or without special tokens."""
    return model.tokenizer.tables.of(plan.skip_special_tokens)


def failure(end: End) -> ApiError | None:
    """The error that a client gets for an end without an answer; None if there is an answer."""
    if end.timed_out:
        return ApiError(
            Kind.QUEUE_TIMEOUT, "The request timed out: no engine had begun it by the end of its queue timeout."
        )
    if end.error is not None and end.error.startswith((NO_TOKEN_LEFT, NO_GRAMMAR)):
        return ApiError(Kind.INVALID, f"The request was stopped: {end.error}.")
    if end.reason is FinishReason.ERROR:
        return ApiError(Kind.FAILED, f"The generation failed: {end.error or 'no reason given'}")
    if end.reason is FinishReason.CANCELLED:
        return ApiError(Kind.CANCELLED, "The request was cancelled.")
    return None
