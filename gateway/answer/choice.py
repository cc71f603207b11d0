"""One choice of an answer: tokens become deltas, held back while a stop string, a character or a mark is incomplete.

The events of all APIs are made of these deltas. Between the detokenizer and a delta, a parser may divide the text into
content, reasoning and calls of tools (`gateway/answer/parsers`). Without a parser all of it is content.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.answer.parsers.pieces import Parser
from gateway.answer.parsers.registry import make_parser
from gateway.answer.parts import STRIDE, Part, PartKind
from gateway.answer.plan import Plan
from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from services.messages import End, Logprobs, PromptLogprobs, TokenEvent
from services.requests import NO_GRAMMAR, NO_TOKEN_LEFT, FinishReason
from services.text import Detokenizer, TextTables

UNANSWERED = (FinishReason.CANCELLED, FinishReason.ERROR)
STOP = FinishReason.STOP.value
TOOL_CALLS = "tool_calls"  # why a choice ended: it calls tools
TEXT, REASONING, CALL = PartKind


@dataclass(frozen=True, slots=True)
class Delta:
    """What a choice has gained since the last delta: text that is final, and all tokens. `text`: the content. `number`:
    that of its last token event, `STRIDE` times. `parsed`: the parts of an answer with a parser."""

    text: str
    tokens: list[int]
    logprobs: list[Logprobs]  # parallel to tokens; empty unless requested
    finish_reason: str | None  # "stop", "tool_calls" or "length" in the last delta
    first: bool  # the first delta of the choice
    number: int
    parsed: list[Part] | None

    @property
    def parts(self) -> list[Part]:
        if self.parsed is not None:
            return self.parsed
        return [Part(TEXT, self.text, self.number, begin=self.number)] if self.text else []

    @property
    def reasoning(self) -> str:
        return "".join([part.text for part in self.parsed or () if part.kind is REASONING])

    @property
    def calls(self) -> list[Part]:
        """Of each call that the delta begins or continues."""
        return [part for part in self.parsed or () if part.kind is CALL]


class Choice:
    """Choice `index` of a request. `sent` counts the events (tokens and the end) that the client has received.

    A stream can resume: events before the initial `sent` are decoded but not included in any delta.
    """

    __slots__ = (
        "_detokenizer",
        "_end",
        "_include_reasoning",
        "_logprobs",
        "_parser",
        "_parts",
        "_silent",
        "_text",
        "_tokens",
        "added",
        "called",
        "completion_tokens",
        "error",
        "index",
        "prompt_logprobs",
        "reasoning_tokens",
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
        parser: Parser | None = None,
        include_reasoning: bool = True,
    ) -> None:
        """`stop_ids`: the tokens that end this choice, including EOS. Their text is removed from the answer
        (`End.cut`) unless `include_stop` is set, which also keeps the text of a stop string. `silent`: the tokens are
        not part of the answer. `parser`: divides the text; without it, all of the text is content.
        `include_reasoning`: false leaves the reasoning out of the deltas."""
        self.index = index
        self.sent = sent
        self.added = 0  # number of events taken
        self.completion_tokens = 0
        self.error: ApiError | None = None  # why the choice ended without an answer
        self.prompt_logprobs: PromptLogprobs | None = None  # arrive with the first token, if requested
        self.reasoning_tokens = 0  # completion tokens up to the end of the reasoning
        self.called = False  # whether the text so far has a call
        self._silent = silent
        self._parser = parser
        self._include_reasoning = include_reasoning
        self._parts: list[Part] = []  # with a parser
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
        if self._parser is not None:
            self._parse(self._parser, text, fresh)
        elif fresh:
            self._text += text

    def take(self, allow_empty: bool = False) -> Delta | None:
        """What came since the last delta. None while there is no text, unless the choice has ended; with
        `allow_empty`, tokens without text also make a delta."""
        if self.added <= self.sent or not (self._text or self._parts or self.ended or (allow_empty and self._tokens)):
            return None
        reason = self._end.reason.value if self._end else None
        if reason == STOP and self.called:
            reason = TOOL_CALLS
        parsed = None
        if self._parser is not None:
            parsed, self._parts = self._parts, []
        delta = Delta(self._text, self._tokens, self._logprobs, reason, not self.sent, STRIDE * self.added, parsed)
        self._text, self._tokens, self._logprobs = "", [], []
        self.sent = self.added
        return delta

    def _parse(self, parser: Parser, text: str, fresh: bool) -> None:
        """Divide the text of the event that was taken last into parts."""
        pieces = parser.push(text) if text else []
        if self._end is not None:
            pieces += parser.finish()
        for place, piece in enumerate(pieces):
            if piece.kind is CALL:
                self.called = True
            elif piece.kind is REASONING:
                self.reasoning_tokens = self.completion_tokens
                if not self._include_reasoning:
                    continue
            if fresh:
                if piece.kind is TEXT:
                    self._text += piece.text
                number = STRIDE * self.added + min(place, STRIDE - 1)
                add_part(self._parts, Part(piece.kind, piece.text, number, piece.call, piece.name, number))

    def _finish(self, end: End) -> str:
        self.error = failure(end)
        if self.error is not None:
            return ""
        self._end = end
        return self._detokenizer.finish(end.cut)


def add_part(parts: list[Part], part: Part) -> None:
    """Append `part`, joined with the last one if it continues it."""
    last = parts[-1] if parts else None
    if last is not None and last.kind is part.kind and last.call == part.call:
        parts[-1] = Part(last.kind, last.text + part.text, part.number, last.call, last.name, last.begin)
    else:
        parts.append(part)


def choices_of(plan: Plan, model: ServedModel, sent: tuple[int, ...] = ()) -> list[Choice]:
    """The choices of a request. `sent`: the number of events of each choice that the client has received."""
    tables = tables_of(plan, model)
    eos = frozenset() if plan.ignore_eos else model.info.eos_token_ids
    stop_ids = eos.union(plan.stop_token_ids)
    counts = [*sent, *[0] * (plan.choices - len(sent))]
    return [
        Choice(
            i,
            tables,
            plan.stop,
            stop_ids,
            counts[i],
            plan.include_stop,
            plan.silent,
            make_parser(plan.tool_parser, plan.reasoning_parser, plan.reasoning_open, plan.parallel_tool_calls),
            plan.include_reasoning,
        )
        for i in range(plan.choices)
    ]


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
