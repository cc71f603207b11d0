"""The processor time of a run over HTTP, by process: server and client, for each token and each chunk."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from load.over_http import run_over_http
from load.processes import CLIENT, by_kind
from load.trace import Request, Run


@dataclass(frozen=True, slots=True)
class Spent:
    """A run over HTTP, and the processor seconds that it took by kind of process, the client's among them."""

    run: Run
    seconds: Mapping[str, float]

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
    run = asyncio.run(run_over_http(url, requests))
    own = own_seconds() - own
    return Spent(run, by_kind(before, processes()) | {CLIENT: own})


def own_seconds() -> float:
    """Processor seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
