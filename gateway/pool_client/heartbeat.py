"""Each second: tell the pool that this gateway lives and what it counted, and read the overview."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from services.errors import PoolUnavailable
from services.messages import EngineFigures
from services.overview import Overview
from services.pool.pool import RequestPool
from services.telemetry import Counters

PERIOD = 1.0  # seconds
PERIOD_UNREADY = 0.2  # while no engine is ready: somebody may be waiting for one
STALE = 5.0  # seconds without a heartbeat after which what the last one read is not passed on
SPACING = 0.05  # seconds at least between reads of the overview for those who ask for the latest

log = logging.getLogger(__name__)


class Heartbeat:
    """`on_missed` is awaited when this gateway may have missed events; it may raise PoolUnavailable."""

    def __init__(
        self, pool: RequestPool, gateway: str, counters: Counters, on_missed: Callable[[], Awaitable[None]]
    ) -> None:
        self._pool = pool
        self._gateway = gateway
        self._counters = counters
        self._on_missed = on_missed
        self._call = 0
        self._unsent: dict[str, float] | None = None  # of a call that was not answered: it is repeated unchanged
        self._missed = False
        self._overview: Overview | None = None
        self._read_at = 0.0  # when it was read, seconds on the loop's clock
        self._trouble: PoolUnavailable | None = None  # why the last beat failed
        self._asking = asyncio.Lock()
        self._asked_at = -SPACING  # when the last read for those who ask began
        self._latest: Overview | PoolUnavailable | None = None  # what it brought

    async def run(self) -> None:
        """Beat until cancelled; an outage of the pool is waited for."""
        while True:
            try:
                await self.beat()
                self._trouble = None
            except PoolUnavailable as error:
                self._trouble = error
                log.debug("no heartbeat: %s", error)
            period = PERIOD if self._overview and self._overview.ready else PERIOD_UNREADY
            due = asyncio.get_running_loop().time() + period
            await asyncio.sleep(period)
            late = asyncio.get_running_loop().time() - due
            self._counters.observe("orca:gateway_loop_lag_seconds", max(0.0, late))

    async def beat(self) -> None:
        """One heartbeat. Raises PoolUnavailable."""
        if self._unsent is None:
            self._call += 1
            self._unsent = self._counters.take()
        self._missed |= not await self._pool.heartbeat(self._gateway, self._call, self._unsent)
        self._unsent = None
        if self._missed:
            await self._on_missed()
            self._missed = False
        self._overview, self._read_at = await self._pool.overview(), asyncio.get_running_loop().time()

    def known(self) -> Overview:
        """The pool as the last heartbeat read it, so that whoever asks costs the pool nothing.

        Raises PoolUnavailable where the pool does not take heartbeats: it would take no requests either.
        """
        if self._trouble is not None:
            raise self._trouble
        if self._overview is None or asyncio.get_running_loop().time() - self._read_at > STALE:
            raise PoolUnavailable("no heartbeat reached the pool yet")
        return self._overview

    async def latest(self) -> Overview:
        """The pool as it is now. All who ask at once share a read, and reads are `SPACING` apart: asking in a loop
        does not load the pool's server. Raises PoolUnavailable."""
        now = asyncio.get_running_loop().time
        came = now()
        async with self._asking:
            if self._asked_at < came:  # nobody has begun a read since
                await asyncio.sleep(max(0.0, self._asked_at + SPACING - now()))
                self._asked_at = now()
                try:
                    self._latest = await self._pool.overview()
                except PoolUnavailable as error:
                    self._latest = error
        if isinstance(self._latest, PoolUnavailable):
            raise self._latest
        assert self._latest is not None
        return self._latest

    async def figures(self) -> EngineFigures | None:
        """Those of the largest engine, the last known ones; None if there never was one. Raises PoolUnavailable."""
        if self._overview is None or self._overview.figures is None:
            self._overview = await self._pool.overview()
        return self._overview.figures
