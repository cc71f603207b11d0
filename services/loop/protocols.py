"""The interfaces of the parts of an EngineLoop. The simulator and the tests have implementations of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from services.messages import Exchange, ExchangeReply, Iteration, IterationResult


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


class Seat(Protocol):
    """An engine's place in the pool, owned under the epoch that `acquire` returned."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> str: ...

    call: int  # the number of the last exchange under this epoch
