"""The processor time of a run over HTTP, by process: server and client, for each token and each chunk."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from load.over_http import run_over_http
from load.processes import CLIENT, busy_seconds, by_kind
from load.trace import Request, Run


@dataclass(slots=True)
class Busy:
    """Processor seconds of the whole machine over `took` seconds."""

    seconds: float = 0.0
    took: float = 0.0

    def without(self, own: float) -> float:
        """The cores that other work had, beside what took `own` processor seconds."""
        return max(0.0, self.seconds - own) / self.took


@contextmanager
def busy_share() -> Iterator[Busy]:
    """What the machine does within; to be read afterwards."""
    found, before, began = Busy(), busy_seconds(), time.perf_counter()
    yield found
    found.took, found.seconds = time.perf_counter() - began, busy_seconds() - before


@dataclass(frozen=True, slots=True)
class Spent:
    """A run over HTTP, and its processor seconds by kind of process, the client's among them. `others`: the
    cores that other work had meanwhile."""

    run: Run
    seconds: Mapping[str, float]
    others: float

    @property
    def chunks(self) -> int:
        return sum(answer.chunks for answer in self.run.answers)

    def per_token(self, unit: float) -> dict[str, float]:
        """Processor time of an output token by kind of process, and in all for a token and for a chunk, in units of
        `unit` seconds."""
        each = {kind: seconds / self.run.tokens / unit for kind, seconds in self.seconds.items()}
        total = sum(self.seconds.values()) / unit
        return each | {"a token": total / self.run.tokens, "a chunk": total / self.chunks}


def spend(url: str, requests: Sequence[Request], processes: Callable[[], dict[int, float]]) -> Spent:
    """Run `requests` on the server at `url`. `processes` reads the processor seconds of its processes by their ids."""
    before, own = processes(), own_seconds()
    with busy_share() as busy:
        run = asyncio.run(run_over_http(url, requests))
    seconds = by_kind(before, processes()) | {CLIENT: own_seconds() - own}
    return Spent(run, seconds, busy.without(sum(seconds.values())))


def own_seconds() -> float:
    """Processor seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
