"""EngineLoop: update, select, start, exchange, again and again. It knows protocols only.

The Ray actor, the in-process benchmark and the simulator all run this one coroutine, each with its own pool,
engine and clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from math import inf
from typing import Any, Protocol

from services.errors import PoolUnavailable, StaleEpoch
from services.iteration_stats import IterationStats
from services.messages import Claim, Commit, EngineFigures, Exchange, ExchangeReply, Iteration, IterationResult, Room
from services.telemetry import Counters

FIRST_RETRY = 0.02  # seconds between a failed exchange and its repeat; doubles up to a third of the lease


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

    async def wait_any(self, futures: Iterable[asyncio.Future[Any]], timeout: float) -> None:
        """Return when one of `futures` is done, or after `timeout` seconds; none is cancelled by this."""
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

    def has_commits(self) -> bool:
        """Whether `take_commits` has something to give."""
        ...

    def room(self) -> Room:
        """What can be claimed now, counting requests that will end by length in the iteration in flight."""
        ...

    def kv_usage(self) -> float:
        """The share of KV blocks that is reserved, 0 to 1."""
        ...


class Seat(Protocol):
    """An engine's place in the pool, under the epoch that `acquire` gave."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> str: ...

    call: int  # number of the last exchange under this epoch


class EngineLoop:
    """One seat's heart: keeps its engine busy, commits what it makes, claims what it has room for.

    The engine never waits for the pool: while iteration k+1 runs, one exchange commits k and claims for k+2. An
    exchange that fails is repeated unchanged, and what comes about meanwhile joins the next. While an iteration
    outlasts a third of the lease, and while there is nothing to do, an exchange renews the lease that often.
    """

    def __init__(
        self,
        pool: Pool,
        scheduler: Scheduler,
        engine: Engine,
        clock: Clock,
        seat: Seat,
        lease: float,
        figures: EngineFigures,
        counters: Counters,
    ) -> None:
        """Scheduler and engine know the seat's epoch. `lease` is in seconds."""
        self._pool = pool
        self._scheduler = scheduler
        self._engine = engine
        self._clock = clock
        self._seat = seat
        self._renewal = lease / 3
        self._figures: EngineFigures | None = figures  # not sent yet
        self._stats = IterationStats(counters)
        self._stopping = False
        self._iteration: asyncio.Future[IterationResult] | None = None
        self._call: asyncio.Future[ExchangeReply] | None = None
        self._bell: asyncio.Future[None] | None = None
        self._exchange: Exchange | None = None  # not answered yet
        self._call_began = self._iteration_began = 0.0
        self._retry_at, self._backoff = 0.0, FIRST_RETRY
        self._nothing_waits = False  # the last reply to an idle exchange brought no work

    def stop(self) -> None:
        """Let `run` return once the iteration in flight is committed. What then still runs goes back to the pool
        when the caller releases the seat."""
        self._stopping = True
        if self._bell:
            self._bell.cancel()

    async def run(self) -> None:
        """Serve until `stop`. Raises StaleEpoch when the seat is another's, EngineLost when the engine died: then
        nothing more is written under this epoch, and the next owner of the seat goes on with its requests."""
        try:
            while True:
                self._start_iteration()
                if self._finished():
                    return
                if self._nothing_waits:
                    await self._wait_for_bell()
                    continue
                self._begin_exchange()
                under_way = [future for future in (self._iteration, self._call) if future is not None]
                await self._clock.wait_any(under_way, self._next_call() - self._clock.now())
                self._end_exchange()
                self._end_iteration()
        finally:
            await self._leave()

    # --- the engine ------------------------------------------------------------------------------------------

    def _start_iteration(self) -> None:
        if self._iteration or self._stopping:
            return
        iteration = self._scheduler.select()
        if iteration is None:
            return
        self._iteration_began = self._clock.now()
        self._iteration = asyncio.ensure_future(self._engine.start(iteration))
        self._stats.started(iteration)
        self._nothing_waits = False

    def _end_iteration(self) -> None:
        if self._iteration is None or not self._iteration.done():
            return
        iteration, self._iteration = self._iteration, None
        result = iteration.result()
        self._scheduler.update(result)
        self._stats.finished(result, self._clock.now() - self._iteration_began)

    # --- the pool --------------------------------------------------------------------------------------------

    def _begin_exchange(self) -> None:
        """Send what is due, if no call is under way."""
        if self._clock.now() < self._next_call():
            return
        if self._exchange is None:
            self._exchange = self._next_exchange()
        self._call_began = self._clock.now()
        self._call = asyncio.ensure_future(self._pool.exchange(self._exchange))

    def _next_call(self) -> float:
        """When the next exchange is due; the distant future while one is under way."""
        if self._call:
            return inf
        if self._exchange:
            return self._retry_at
        if self._iteration is None or self._figures or self._scheduler.has_commits():
            return -inf
        return self._call_began + self._renewal

    def _next_exchange(self) -> Exchange:
        commits = self._scheduler.take_commits()
        room = self._scheduler.room()
        self._stats.committed(commits)
        self._seat.call += 1
        exchange = Exchange(
            self._seat.name,
            self._seat.epoch,
            self._seat.call,
            commits,
            Room(0, 0, room.block_size) if self._stopping else room,
            idle=self._iteration is None and not self._stopping,
            figures=self._figures,
            counters=self._stats.take_counters(),
            gauges=self._stats.gauges(self._scheduler.kv_usage()),
            summary=self._stats.summary,
        )
        self._figures = None
        return exchange

    def _end_exchange(self) -> None:
        """Take the reply, if it is there."""
        if self._call is None or not self._call.done():
            return
        call, self._call = self._call, None
        assert self._exchange is not None
        try:
            reply = call.result()
        except PoolUnavailable:
            self._retry_at = self._clock.now() + self._backoff
            self._backoff = min(2 * self._backoff, self._renewal)
            return
        if not reply.owned:
            raise StaleEpoch(f"epoch {self._seat.epoch} of seat {self._seat.name} is over")
        exchange, self._exchange, self._backoff = self._exchange, None, FIRST_RETRY
        self._stats.exchanged(self._clock.now() - self._call_began)
        self._scheduler.cancel(reply.foreign)  # before they may be claimed anew
        self._scheduler.add(reply.claims)
        self._scheduler.cancel(reply.cancelled)
        nothing = not reply.claims and not reply.lost and not self._scheduler.has_commits()
        self._nothing_waits = exchange.idle and nothing

    async def _wait_for_bell(self) -> None:
        """Nothing to do: until the pool rings, the lease wants renewing, or `stop`."""
        self._nothing_waits = False
        self._bell = asyncio.ensure_future(self._pool.wait_bell(self._seat.name, self._renewal))
        await self._clock.wait_any([self._bell], 2 * self._renewal)  # twice: a dead connection must not cost the lease
        bell, self._bell = self._bell, None
        if not bell.done():
            bell.cancel()
        elif not bell.cancelled() and (error := bell.exception()):
            if not isinstance(error, PoolUnavailable):
                raise error
            await self._clock.wait_any([], self._backoff)

    # --- the end ---------------------------------------------------------------------------------------------

    def _finished(self) -> bool:
        idle = self._iteration is None and self._exchange is None
        return self._stopping and idle and not self._scheduler.has_commits()

    async def _leave(self) -> None:
        """Give the call under way, which may carry tokens of a lost engine, the time to arrive; wait for no more."""
        if self._call:
            await self._clock.wait_any([self._call], self._renewal)
        if self._iteration:
            self._iteration.add_done_callback(_forget)
        for future in (self._call, self._bell):
            if future:
                future.cancel()
                future.add_done_callback(_forget)


def _forget(future: asyncio.Future[Any]) -> None:
    """Whatever a future that nobody awaits any more brings."""
    if not future.cancelled():
        future.exception()
