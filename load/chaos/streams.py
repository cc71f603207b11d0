"""The load of a chaos run: streams that resume. Each is recorded and compared with its undisturbed answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp
import orjson

from load.chaos.history import Recorder
from load.chaos.workload import VECTORS, difference, error_in
from load.trace import HttpRequest
from services.client.sse import Event, StreamedAnswer, StreamError
from services.client.streaming import follow, read_stream

VECTOR_TOKENS = [0]  # the output token that stands for the vector of a text
UNDER_WAY = 0.5  # seconds after a fault in which tokens that were sent before may still arrive


@dataclass(slots=True)
class Outcome:
    """What became of one request; `arrivals` are the times at which tokens came, on the clock of `time.monotonic`."""

    request: HttpRequest
    number: int
    began: float
    answer: StreamedAnswer = field(default_factory=StreamedAnswer)
    arrivals: list[float] = field(default_factory=list)
    end: float = 0.0  # 0 while it is open
    reconnects: int = 0
    error: str = ""
    status: int = 0  # of a refusal, which `error` describes
    wrong: str = ""  # how it differs from the undisturbed answer
    invalid: str = ""  # how it breaks the constraint of the request


class Streams:
    """Sends requests, reads their streams, and collects an `Outcome` for each in `outcomes`.

    `expected`: the answers of an undisturbed run by the name of the request, which `learn` fills; a later answer that
    differs from its one is marked `wrong`. `recorder`: is told when requests are submitted and end. `patience`: seconds
    for which a broken stream is resumed. `keys`: API keys, which the requests use in turn.
    """

    def __init__(
        self, session: aiohttp.ClientSession, recorder: Recorder | None, patience: float, keys: Sequence[str] = ()
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.expected: dict[str, StreamedAnswer] = {}
        self._session, self._recorder, self._patience = session, recorder, patience
        self._keys = keys

    @property
    def open(self) -> int:
        """How many streams have begun and not ended. Vectors arrive at the end, so theirs begin when they are sent."""
        return sum(bool(o.arrivals or o.request.path == VECTORS) and not o.end for o in self.outcomes)

    async def learn(self, requests: list[HttpRequest]) -> None:
        """Run each request once; these are the undisturbed answers. Raises StreamError."""
        undisturbed = Streams(self._session, None, self._patience, self._keys)
        outcomes = await asyncio.gather(*(undisturbed.run(request) for request in requests))
        for outcome in outcomes:
            if outcome.error:
                raise StreamError(f"{outcome.request.name}, undisturbed: {outcome.error}")
            outcome.answer.check()
            if outcome.invalid:
                raise StreamError(f"{outcome.request.name}, undisturbed: {outcome.invalid}")
            self.expected[outcome.request.name] = outcome.answer

    async def run(self, request: HttpRequest) -> Outcome:
        """Run one request to its end. Errors are recorded in the outcome."""
        outcome, recorder = Outcome(request, len(self.outcomes), time.monotonic()), self._recorder
        self.outcomes.append(outcome)

        def on_event(event: Event) -> None:
            if '"token_ids":[' in event.data and '"token_ids":[]' not in event.data:
                outcome.arrivals.append(time.monotonic())
            if recorder:
                recorder.event(outcome.number, event)

        def on_connect(last_id: str) -> None:
            if recorder:
                recorder.connect(outcome.number, last_id)

        if recorder:
            recorder.submit(outcome.number, request.choices)
        key = {"Authorization": f"Bearer {self._keys[outcome.number % len(self._keys)]}"} if self._keys else None
        try:
            read = read_vectors if request.path == VECTORS else read_stream
            resumable = await follow(
                self._session,
                request.path,
                request.body,
                outcome.answer,
                on_event,
                on_connect,
                self._patience,
                key,
                read,
            )
            outcome.reconnects = resumable.reconnects
            outcome.answer.check()
        except StreamError as error:
            outcome.error, outcome.status = str(error), error.status
        outcome.end = time.monotonic()
        if recorder:
            recorder.done(outcome.number, outcome.error)
        if not outcome.error:
            outcome.invalid = error_in(request, outcome.answer)
        if not outcome.error and (expected := self.expected.get(request.name)):
            outcome.wrong = difference(expected, outcome.answer)
        return outcome

    async def keep(self, requests: list[HttpRequest], count: int, over: asyncio.Event, pause: float = 0.0) -> None:
        """Keep `count` streams open, through all the requests again and again, until `over`; then wait for the last.

        `pause`: seconds between a stream and the next one in its place."""

        async def user(first: int) -> None:
            place = first
            while not over.is_set():
                await self.run(requests[place % len(requests)])
                await asyncio.sleep(pause)
                place += count

        async with asyncio.TaskGroup() as tasks:
            for first in range(count):
                tasks.create_task(user(first))


async def read_vectors(
    response: aiohttp.ClientResponse, answer: StreamedAnswer, on_event: Callable[[Event], None]
) -> None:
    """Feed a whole answer to `answer`, as the events of a stream; the text of each choice is its vector in base64."""
    for event in as_events(orjson.loads(await response.read())):
        answer.feed(event)
        on_event(event)


def as_events(made: dict[str, Any]) -> Iterator[Event]:
    """The events of a stream that brings these vectors: a token and the end of each text."""
    found = sorted(made["data"], key=lambda one: one["index"])
    choices = [
        {"index": one["index"], "text": one["embedding"], "token_ids": VECTOR_TOKENS, "finish_reason": "stop"}
        for one in found
    ]
    counts = ".".join([str(len(VECTOR_TOKENS) + 1)] * len(choices))
    yield Event(orjson.dumps({"choices": choices, "usage": made["usage"]}).decode(), f"{made['id']}:{counts}")
    yield Event("[DONE]")


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from a fault until the first and until the last of the streams that were open then continued."""

    first: float
    last: float


def recovery(at: float, outcomes: Sequence[Outcome]) -> Recovery | None:
    """The recovery from a fault at `at`: the ends of the longest silences that began within `UNDER_WAY`. None if no
    stream was open."""
    streams = [[o.began, *o.arrivals] for o in outcomes if o.began < at and (o.end == 0 or o.end > at) and o.arrivals]
    each = [end for end in (_back(at, times) for times in streams) if end is not None]
    together = _back(at, sorted(time for times in streams for time in times))
    return Recovery(together - at, max(each) - at) if each and together is not None else None


def _back(at: float, times: Sequence[float]) -> float | None:
    """When the longest silence that included `at`, or began soon after, ended."""
    silences = [(end - begin, end) for begin, end in pairwise(times) if end > at and begin < at + UNDER_WAY]
    return max(silences)[1] if silences else None
