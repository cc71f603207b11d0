"""Random answers, with and without reasoning and calls, and what a client reads from their events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hypothesis import strategies as st
from lives import CACHED, ID, Life, events_of, lives

from gateway.answer.choice import Choice
from gateway.answer.items import Transcript
from gateway.answer.parsers.registry import make_parser
from services.messages import End, TokenEvent
from services.requests import FinishReason, SamplingParams
from services.text import Tokenizer

STOP = "STOP"
ARGUMENTS = '{"city": "né 🐳 漢"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
PIECES = [
    CALL,
    '<tool_call>{"name": "now"}</tool_call>',
    '<tool_call>[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]</tool_call>',
    '<tool_call>{"name": 7}</tool_call>',
    "hello world né 🐳",
    "one < two <tool_",
    "\n\n",
]


@dataclass(frozen=True)
class ParsedLife:
    """An answer: its text, and its end. It ends by itself unless `life` says how. `parsed`: a parser divides it."""

    text: str
    life: Life | None = None
    parsed: bool = True

    @property
    def sampling(self) -> SamplingParams:
        return self.life[1] if self.life else SamplingParams(1)

    def events(self, tokenizer: Tokenizer) -> list[TokenEvent]:
        if self.life is not None:
            return events_of(tokenizer, self.life)
        tokens = [TokenEvent(ID, index, token) for index, token in enumerate(tokenizer.encode(self.text))]
        return [*tokens, TokenEvent(ID, len(tokens), None, end=End(FinishReason.STOP, cached=CACHED))]

    def reason(self, tokenizer: Tokenizer) -> FinishReason:
        end = self.events(tokenizer)[-1].end
        assert end is not None
        return end.reason

    def transcript(self, tokenizer: Tokenizer) -> Transcript:
        parser = make_parser("hermes", "qwen3", False, True) if self.parsed else None
        choice = Choice(0, tokenizer.tables, self.sampling.stop, frozenset(), parser=parser)
        return Transcript(choice, tokenizer, self.sampling.logprobs is not None)

    def heard(self, tokenizer: Tokenizer) -> Transcript:
        """The transcript of all events."""
        transcript = self.transcript(tokenizer)
        transcript.add_all(self.events(tokenizer))
        transcript.take()
        return transcript


@st.composite
def parsed_lives(draw: st.DrawFn) -> ParsedLife:
    """A stop string that the text nearly contains holds back a part of it, which then comes with one token, although it
    may be of several kinds."""
    thought = draw(st.sampled_from(["<think>\nI né 🐳\n</think>\n\n", "", "<think>open "]))
    text = thought + "".join(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3)))
    begin = draw(st.integers(0, len(text)))
    sampling = SamplingParams(
        draw(st.sampled_from([400, 60])),
        stop=(STOP, text[begin : begin + 40] + "☃"),
        logprobs=draw(st.sampled_from([None, 1])),
    )
    outside = draw(st.sampled_from([None, None, FinishReason.CANCELLED, FinishReason.ERROR]))
    return ParsedLife(text, (text + STOP, sampling, outside, draw(st.integers(0, 100))))


def answers() -> st.SearchStrategy[ParsedLife]:
    """Answers with a parser and without."""
    return parsed_lives() | lives().map(lambda life: ParsedLife(life[0], life, parsed=False))


@dataclass(frozen=True)
class Event:
    """One event. `number`: None for the last ones of a message. `item`: the index of the item to which it adds `delta`;
    None for other events, which `said` has."""

    number: int | None
    said: Any
    item: int | None = None
    delta: str = ""
    logprobs: tuple[Any, ...] = ()


def told(events: Iterable[Event]) -> list[Any]:
    """The contents of the events in order, with the deltas of one item joined."""
    made: list[Any] = []
    for item, group in groupby(events, key=lambda event: event.item):
        if item is None:
            made += [event.said for event in group]
        else:
            adding = list(group)
            scored = [entry for event in adding for entry in event.logprobs]
            made.append((item, "".join(event.delta for event in adding), scored))
    return made


def numbers(events: Iterable[Event]) -> list[int]:
    return [event.number for event in events if event.number is not None]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def object_of(text: str) -> dict[str, Any]:
    try:
        made = json.loads(text)
    except ValueError:
        return {}
    return made if isinstance(made, dict) else {}
