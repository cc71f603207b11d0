"""The processor time of a run over HTTP, by process: server and client, for each token and each chunk."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from load.over_http import run_over_http
from load.processes import CLIENT, busy_seconds, by_kind
from load.trace import Request, Run


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
    before, own, busy, began = processes(), own_seconds(), busy_seconds(), time.perf_counter()
    run = asyncio.run(run_over_http(url, requests))
    took, own, busy = time.perf_counter() - began, own_seconds() - own, busy_seconds() - busy
    seconds = by_kind(before, processes()) | {CLIENT: own}
    return Spent(run, seconds, max(0.0, busy - sum(seconds.values())) / took)


def own_seconds() -> float:
    """Processor seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
