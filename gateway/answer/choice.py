"""One choice of an answer: tokens become deltas, held back while a stop string, a character or a mark is incomplete.

The events of all APIs are made of these deltas. Between the detokenizer and a delta, a parser may divide the text into
content, reasoning and calls of tools (`gateway/answer/parsers`). Without a parser all of it is content.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Final, NamedTuple

from gateway.answer.parsers.call_object import CustomInput
from gateway.answer.parsers.registry import make_parser
from gateway.answer.parts import CALL, CUSTOM, REASONING, STRIDE, TEXT, Parser, Part
from gateway.answer.plan import Plan
from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from gateway.schemas.answers import ChatFinishReason
from services.messages import End, Logprobs, PromptLogprobs, TokenEvent
from services.requests import NO_GRAMMAR, NO_TOKEN_LEFT, FinishReason
from services.text import Detokenizer, TextTables

UNANSWERED = (FinishReason.CANCELLED, FinishReason.ERROR)
TOOL_CALLS: Final = "tool_calls"  # why a choice ended: it calls tools
REASONS: dict[FinishReason, ChatFinishReason] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Delta(NamedTuple):
    """What a choice has gained since the last delta: text that is final, and all tokens. `text`: the content. `parts`:
    those of an answer with a parser, otherwise None. It is a tuple, which is made faster than a dataclass: each token
    of each stream makes one."""

    text: str
    tokens: list[int]
    logprobs: list[Logprobs]  # parallel to tokens; empty unless requested
    finish_reason: ChatFinishReason | None  # in the last delta
    first: bool  # the first delta of the choice
    parts: list[Part] | None

    @property
    def reasoning(self) -> str:
        return "".join([part.text for part in self.parts or () if part.kind is REASONING])

    @property
    def calls(self) -> list[Part]:
        """The parts of calls, one of each call that the delta begins or continues."""
        return [part for part in self.parts or () if part.call >= 0]


class Choice:
    """Choice `index` of a request. `sent` counts the events (tokens and the end) that the client has received.

    A stream can resume: events before the initial `sent` are decoded but not included in any delta.
    """

    __slots__ = (
        "_arguments",
        "_custom",
        "_detokenizer",
        "_end",
        "_include_reasoning",
        "_input",
        "_logprobs",
        "_parser",
        "_parts",
        "_silent",
        "_texts",
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
        custom: tuple[str, ...] = (),
    ) -> None:
        """`stop_ids`: the tokens that end this choice, including EOS. Their text is removed from the answer
        (`End.cut`) unless `include_stop` is set, which also keeps the text of a stop string. `silent`: the tokens are
        not part of the answer. `parser`: divides the text; without it, all of the text is content.
        `include_reasoning`: false leaves the reasoning out of the deltas. `custom`: the names of custom tools."""
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
        self._parts: list[tuple[Part, int]] = []  # with a parser: each part and its number
        self._arguments: list[str] = []  # with a parser: of the call that the text so far ends with
        self._custom = custom
        self._input: CustomInput | None = None  # of the custom tool that the text so far ends with a call of
        self._detokenizer = Detokenizer(tables, stops, stop_ids, include_stop)
        self._texts: list[str] = []  # without a parser
        self._tokens: list[int] = []
        self._logprobs: list[Logprobs] = []
        self._end: End | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def parsed(self) -> bool:
        """Whether a parser divides the text."""
        return self._parser is not None

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token id that ended the choice, vLLM's field; None for EOS and limits."""
        return self._end.stop if self._end else None

    @property
    def calls_tools(self) -> bool:
        """Whether the answer has ended with calls that the client is to run: it reached no limit, and none is cut."""
        end = self._end
        return self.called and end is not None and end.reason is FinishReason.STOP and not self.cut_by(end)

    def cut_by(self, end: End) -> bool:
        """Whether `end` cuts the call that the text so far ends with: its arguments are not JSON, and not since the
        model ended them so."""
        by_model = end.reason is FinishReason.STOP and end.stop is None  # neither a stop string nor a stop token
        return bool(self._arguments) and not by_model and not _is_json("".join(self._arguments))

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
        elif fresh and text:
            self._texts.append(text)

    def add_all(self, events: list[TokenEvent]) -> None:
        """Take the next events. The text of their tokens is decoded at once where it does not matter which token it is
        of."""
        if self._parser is not None or self._silent or self.added < self.sent:
            for event in events:
                self.add(event)
            return
        last = events[-1]
        assert events[0].index == self.added, f"event {events[0].index} of {last.id} after {self.added} events"
        assert last.index == self.added + len(events) - 1, f"events of {last.id} are missing before {last.index}"
        self.added += len(events)
        tokens = [event.token for event in events if event.token is not None]
        scored = [event.logprobs for event in events if event.logprobs is not None]
        self.completion_tokens += len(tokens)
        self._tokens += tokens
        if scored:
            self._logprobs += scored
            self.prompt_logprobs = scored[0].prompt or self.prompt_logprobs
        text = self._detokenizer.push(tokens)
        if last.end is not None:
            text += self._finish(last.end)
        if text:
            self._texts.append(text)

    def take(self, allow_empty: bool = False) -> Delta | None:
        """What came since the last delta. None while there is no text, unless the choice has ended; with
        `allow_empty`, tokens without text also make a delta."""
        if self.added <= self.sent:
            return None
        end, texts, pieces = self._end, self._texts, self._parts
        if end is None and not (texts or pieces or (allow_empty and self._tokens)):
            return None
        reason = None if end is None else TOOL_CALLS if self.calls_tools else REASONS[end.reason]
        if self._parser is None:
            parts, text = None, texts[0] if len(texts) == 1 else "".join(texts)
            self._texts = []
        else:
            parts, self._parts = _joined(pieces), []
            text = "".join([part.text for part in parts if part.kind is TEXT])
        delta = Delta(text, self._tokens, self._logprobs, reason, not self.sent, parts)
        self._tokens, self._logprobs = [], []
        self.sent = self.added - (self.error is not None)  # the end of a failed choice is in no delta
        return delta

    def _parse(self, parser: Parser, text: str, fresh: bool) -> None:
        """Divide the text of the event that was taken last into parts."""
        pieces = parser.push(text) if text else []
        if self._end is not None:
            pieces += parser.finish()
        assert len(pieces) < STRIDE, f"{len(pieces)} pieces of one token"
        for number, piece in enumerate(pieces, STRIDE * self.added):
            if piece.kind is not CALL or piece.name is not None:
                self._arguments = []
            if piece.kind is CALL:
                self.called = True
                self._arguments.append(piece.text)
                if self._custom:
                    piece = self._with_input(piece)
                    if not piece.text and piece.name is None:
                        continue
            elif piece.kind is REASONING:
                self.reasoning_tokens = self.completion_tokens
                if not self._include_reasoning:
                    continue
            if fresh:
                self._parts.append((piece, number))

    def _with_input(self, piece: Part) -> Part:
        """A piece of a call, with a piece of the input in place of arguments if it is one of a custom tool."""
        if piece.name is not None:
            self._input = CustomInput() if piece.name in self._custom else None
        if self._input is None:
            return piece
        return piece._replace(kind=CUSTOM, text=self._input.read(piece.text))

    def _finish(self, end: End) -> str:
        self.error = failure(end)
        if self.error is not None:
            return ""
        self._end = end
        return self._detokenizer.finish(end.cut)


def _joined(pieces: list[tuple[Part, int]]) -> list[Part]:
    """`pieces`, each with its number, with neighbours of one kind and those of one call joined."""
    parts: list[Part] = []
    at = 0
    while at < len(pieces):
        first, end = pieces[at][0], at + 1
        while end < len(pieces) and pieces[end][0].kind is first.kind and pieces[end][0].call == first.call:
            end += 1
        text = first.text if end == at + 1 else "".join([piece.text for piece, _ in pieces[at:end]])
        parts.append(Part(first.kind, text, first.call, first.name, pieces[end - 1][1]))
        at = end
    return parts


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
            make_parser(
                plan.tool_parser, plan.reasoning_parser, plan.reasoning_open, plan.parallel_tool_calls, plan.types
            ),
            plan.include_reasoning,
            plan.custom,
        )
        for i in range(plan.choices)
    ]


def tables_of(plan: Plan, model: ServedModel) -> TextTables:
    """The text of each token, with or without special tokens."""
    return model.tokenizer.tables.of(plan.skip_special_tokens)


def call_id(request: str, choice: int, call: int) -> str:
    """The id of a call, equal at every gateway: 24 hexadecimal digits, without a prefix."""
    return sha256(f"{request}/{choice}/{call}".encode()).hexdigest()[:24]


def _is_json(text: str) -> bool:
    """Whether a text is JSON. A model may nest it deeper than Python reads."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


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
