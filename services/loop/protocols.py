"""What an EngineLoop needs of the parts it is given: protocols, so that a simulator can give it others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from services.messages import Claim, Commit, Exchange, ExchangeReply, Iteration, IterationResult, Room


class Pool(Protocol):
    """A request pool. Both raise `PoolUnavailable` while its server is away."""

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Commit, renew the lease, claim: one atomic call, safe to repeat with the same call number."""
        ...

    async def wait_bell(self, seat: str, timeout: float) -> None:
        """Return when work may be waiting for an idle seat, or after `timeout` seconds."""
        ...


class Engine(Protocol):
    """Something that runs iterations, in order."""

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Begin the iteration now, or as soon as those before allow; awaiting gives its result or raises `EngineLost`
        or `StaleEpoch`."""
        ...


class Clock(Protocol):
    """Time, real or virtual."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    async def wait_any(self, futures: Iterable[asyncio.Future[Any]], timeout: float) -> None:
        """Return when one of `futures` is done, or after `timeout` seconds; none is cancelled by this."""
        ...


class Scheduler(Protocol):
    """Who runs next (paper, Algorithm 1). The only judge of when a request has ended."""

    def drop(self, ids: list[str]) -> None:
        """Forget requests that are another's, committing nothing of them."""
        ...

    def rewind(self, have: dict[str, int]) -> int:
        """Commit these requests again from the token on that the pool lacks; how many sent tokens go again."""
        ...

    def add(self, claims: list[Claim]) -> None: ...

    def cancel(self, ids: list[str]) -> None: ...

    def select(self) -> Iteration | None:
        """The next iteration, or None when nothing can run, or as many as may be are in flight."""
        ...

    def update(self, result: IterationResult) -> None:
        """Take the result of the oldest iteration in flight."""
        ...

    def take_commits(self) -> list[Commit]:
        """What must be committed since the last call, in the order it came about."""
        ...

    def has_commits(self) -> bool:
        """Whether `take_commits` has something to give."""
        ...

    def gives_way(self) -> bool:
        """Whether all that runs gives way to whatever the next claim brings: lines of batches."""
        ...

    def rest(self) -> float:
        """Seconds after which `select` may give something though nothing has come in; infinite where it may not."""
        ...

    def held(self) -> list[str]:
        """All it is in charge of, the requests of the last commits included."""
        ...

    def room(self) -> Room:
        """What can be claimed now, counting requests that will end by length in iterations in flight."""
        ...

    def gauges(self) -> dict[str, float]:
        """How full it is, for the outside."""
        ...

    def take_counters(self) -> dict[str, float]:
        """What it counted since the last call, likewise."""
        ...


class Seat(Protocol):
    """An engine's place in the pool, under the epoch that `acquire` gave."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> str: ...

    call: int  # number of the last exchange under this epoch
