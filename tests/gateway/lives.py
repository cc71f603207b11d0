"""Event sequences drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from services.messages import End, Logprobs, TokenEvent
from services.requests import FinishReason, SamplingParams
from services.scheduling.stopping import StopChecker, StopRules
from services.text import Tokenizer

ID = "some-request/0"
CACHED = 3
TEXTS = ["hello world", "né 🐳 漢", "one STOP two", "STOSTOP", "a"]
Life = tuple[str, SamplingParams, FinishReason | None, int]


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """A text that is repeated, its sampling parameters, and the reason and token count of an end from outside."""
    stops = draw(st.sampled_from([(), ("STOP",), ("TOP", "STO")]))
    sampling = SamplingParams(draw(st.integers(1, 12)), stop=stops, logprobs=draw(st.sampled_from([None, 1])))
    outside = draw(st.sampled_from([None, FinishReason.CANCELLED, FinishReason.ERROR]))
    return draw(st.sampled_from(TEXTS)), sampling, outside, draw(st.integers(0, 12))


def events_of(tokenizer: Tokenizer, life: Life) -> list[TokenEvent]:
    """The events of a life, as the scheduler and the pool produce them."""
    text, sampling, outside, after = life
    checker = StopChecker(StopRules(512, frozenset(), tokenizer.tables), sampling, 5)
    events: list[TokenEvent] = []
    said = tokenizer.encode(text)
    while True:
        index = len(events)
        if outside is not None and index == after:
            return [*events, TokenEvent(ID, index, None, end=End(outside, error="why", cached=CACHED))]
        token = said[index % len(said)]
        logprobs = None if sampling.logprobs is None else Logprobs(-0.5, [(token, -0.5)])
        events.append(TokenEvent(ID, index, token, logprobs))
        end = checker.check_stop(token, index + 1)
        if end is not None:
            return [*events, TokenEvent(ID, index + 1, None, end=replace(end, cached=CACHED))]


def grouped(draw: st.DrawFn, events: list[TokenEvent]) -> Iterator[list[TokenEvent]]:
    while events:
        size = draw(st.integers(1, len(events)))
        yield events[:size]
        events = events[size:]
