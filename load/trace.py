"""A trace: its requests, how a system is asked for them, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as a server gets it: a POST of the JSON `body` to `path`. `name` identifies it within a run."""

    path: str
    body: dict[str, Any] = field(repr=False)
    name: str = ""

    @property
    def choices(self) -> int:
        """How many choices its answer has: `n` for each prompt, or one for each text of which it wants a vector."""
        prompt = self.body.get("prompt") or self.body.get("input")
        prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1
        return prompts * int(self.body.get("n", 1))


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace: the token ids of `prompt` in, exactly `max_new_tokens` tokens out (greedy, EOS ignored).

    It arrives `at` seconds after the trace begins.
    """

    prompt: list[int]
    max_new_tokens: int
    at: float = 0.0

    def http(self) -> HttpRequest:
        """The request as a streamed completion."""
        body = {
            "prompt": self.prompt,
            "max_tokens": self.max_new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        return HttpRequest("/v1/completions", body)


@dataclass(slots=True)
class Answer:
    """The answer to one request. Times are seconds since the trace began.

    `times` has the time of each token: when it was committed or, over HTTP, received. `chunks`: how many chunks a
    server sent.
    """

    request: Request
    arrived: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    chunks: int = 0

    @property
    def ttft(self) -> float:
        """Seconds from the arrival to the first token."""
        return self.times[0] - self.arrived

    @property
    def latency(self) -> float:
        """Seconds from the arrival to the last token."""
        return self.times[-1] - self.arrived

    @property
    def normalized_latency(self) -> float:
        """Seconds for each generated token, waiting included (paper, section 6.2)."""
        return self.latency / len(self.times)

    def gaps(self, begin: float, end: float) -> list[float]:
        """The seconds between neighbouring tokens, for each such interval that overlaps `begin` to `end`."""
        return [after - before for before, after in pairwise(self.times) if after > begin and before < end]


class System(Protocol):
    """What answers requests: an engine in this process, a server over HTTP, or a simulated pool."""

    def now(self) -> float:
        """Seconds since the trace began."""

    async def ask(self, request: Request) -> Answer:
        """Submit `request` now and wait for its whole answer."""


async def run_trace(system: System, requests: Sequence[Request]) -> list[Answer]:
    """Submit each request when it is due and wait for all; answers in the order of `requests`."""

    async def ask(request: Request) -> Answer:
        if (early := request.at - system.now()) > 0:
            await asyncio.sleep(early)
        return await system.ask(request)

    return await asyncio.gather(*map(ask, requests))


def since_due(answers: Sequence[Answer]) -> list[Answer]:
    """Whole answers whose latencies count from when the requests were due, not from when they were sent."""
    for answer in answers:
        expected = answer.request.max_new_tokens
        assert len(answer.tokens) == expected, f"{len(answer.tokens)} tokens of {expected}"
        answer.arrived = answer.request.at
    return list(answers)


@dataclass(frozen=True, slots=True)
class Run:
    """A whole trace, answers in the order of its requests."""

    answers: Sequence[Answer]

    @property
    def outputs(self) -> list[list[int]]:
        return [answer.tokens for answer in self.answers]

    @property
    def seconds(self) -> float:
        """From the beginning to the last token."""
        return max(answer.times[-1] for answer in self.answers)

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return sum(map(len, self.outputs))

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds
