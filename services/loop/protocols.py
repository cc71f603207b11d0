"""The interfaces of the parts of an EngineLoop. The simulator and the tests have implementations of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from services.messages import Claim, Commit, Exchange, ExchangeReply, Iteration, IterationResult, Room


class Pool(Protocol):
    """A request pool. Both methods raise `PoolUnavailable` while its server is away."""

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Commit, renew the lease and claim in one atomic call, which can be repeated with the same call number."""
        ...

    async def wait_bell(self, seat: str, timeout: float) -> None:
        """Return when an idle seat may find work, or after `timeout` seconds."""
        ...


class Engine(Protocol):
    """Runs iterations in order."""

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Start the iteration now, or when the ones before allow it. Awaiting the return value gives the result or
        raises `EngineLost` or `StaleEpoch`.
        """
        ...


class Clock(Protocol):
    """Time, real or virtual."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    async def wait_any(self, futures: Iterable[asyncio.Future[Any]], timeout: float) -> None:
        """Return when one of `futures` is done, or after `timeout` seconds. No future is cancelled."""
        ...


class Scheduler(Protocol):
    """Decides which requests run in each iteration (paper, Algorithm 1), and when a request has ended."""

    def drop(self, ids: list[str]) -> None:
        """Remove requests that belong to another scheduler. Nothing of them is committed."""
        ...

    def rewind(self, have: dict[str, int]) -> int:
        """Commit these requests again from the first token that the pool lacks. Returns how many tokens are resent."""
        ...

    def add(self, claims: list[Claim]) -> None:
        """Take over requests that were claimed."""
        ...

    def cancel(self, ids: list[str]) -> None:
        """End these requests now."""
        ...

    def select(self) -> Iteration | None:
        """Return the next iteration, or None if nothing can run or enough iterations are in flight."""
        ...

    def update(self, result: IterationResult) -> None:
        """Take the result of the oldest iteration in flight."""
        ...

    def take_commits(self) -> list[Commit]:
        """Return what has to be committed since the last call, in the order in which it happened."""
        ...

    def has_commits(self) -> bool:
        """Return whether `take_commits` would return something."""
        ...

    def claim_interval(self) -> float:
        """Return the most seconds between exchanges that the requests here allow. It is short while all of them give
        way to any other request.
        """
        ...

    def wait_time(self) -> float:
        """Return the seconds after which `select` may return an iteration without new input; infinite if it cannot."""
        ...

    def held(self) -> list[str]:
        """Return the ids of all requests here, including those of the last commits."""
        ...

    def room(self) -> Room:
        """Return what can be claimed now. Requests whose last token is in flight count as ended."""
        ...

    def gauges(self) -> dict[str, float]:
        """Return gauges for the metrics: how full the scheduler is."""
        ...

    def take_counters(self) -> dict[str, float]:
        """Return increments of counters since the last call."""
        ...


class Seat(Protocol):
    """An engine's place in the pool, owned under the epoch that `acquire` returned."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> str: ...

    call: int  # the number of the last exchange under this epoch
