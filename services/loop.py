"""EngineLoop: update, select, start, exchange, again and again. It knows protocols only.

The Ray actor, the in-process benchmark and the simulator all run this one coroutine, each with its own pool,
engine and clock.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from services.messages import Claim, Commit, Exchange, ExchangeReply, Iteration, IterationResult, Room


class Pool(Protocol):
    """What the loop needs of a request pool. Both raise `PoolUnavailable` while its server is away."""

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Commit, renew the lease, claim: one atomic call, safe to repeat with the same call number."""
        ...

    async def wait_bell(self, seat: str, timeout: float) -> None:
        """Return when work may be waiting for an idle seat, or after `timeout` seconds."""
        ...


class Engine(Protocol):
    """Something that runs iterations, one at a time."""

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Begin the iteration now; awaiting gives its result or raises `EngineLost` or `StaleEpoch`."""
        ...


class Clock(Protocol):
    """Time, real or virtual."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, awaitable: Awaitable[Any], timeout: float) -> bool:
        """Whether the future `awaitable` is done within `timeout` seconds; it is never cancelled by this."""
        ...


class Scheduler(Protocol):
    """Who runs next (paper, Algorithm 1). The only judge of when a request has ended."""

    def add(self, claims: list[Claim]) -> None: ...

    def cancel(self, ids: list[str]) -> None: ...

    def select(self) -> Iteration | None:
        """The next iteration, or None when nothing can run."""
        ...

    def update(self, result: IterationResult) -> None: ...

    def take_commits(self) -> list[Commit]:
        """What must be committed since the last call, in the order it came about."""
        ...

    def room(self) -> Room:
        """What can be claimed now, counting requests that will end by length in the iteration in flight."""
        ...
