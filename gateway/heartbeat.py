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

    async def run(self) -> None:
        """Beat until cancelled; an outage of the pool is waited for."""
        while True:
            try:
                await self.beat()
            except PoolUnavailable as error:
                log.debug("no heartbeat: %s", error)
            await asyncio.sleep(PERIOD)

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
        self._overview = await self._pool.overview()

    async def figures(self) -> EngineFigures | None:
        """Those of the largest engine, the last known ones; None if there never was one. Raises PoolUnavailable."""
        if self._overview is None or self._overview.figures is None:
            self._overview = await self._pool.overview()
        return self._overview.figures
