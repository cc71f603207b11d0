"""Each second: report to the pool that this gateway lives and what it counted, and read the overview."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from services.errors import PoolUnavailable
from services.messages import EngineFigures
from services.metrics import Counters
from services.overview import Overview
from services.pool.pool import RequestPool

PERIOD = 1.0  # seconds
PERIOD_UNREADY = 0.2  # while no engine is ready: requests may be waiting for one
STALE = 5.0  # seconds without a heartbeat after which the last overview is not returned any more
SPACING = 0.05  # minimum seconds between reads of the overview for callers of `latest_overview`

log = logging.getLogger(__name__)


class Heartbeat:
    """Reports to one pool each second, and reads its overview. `gauges` returns what the gateway reports of itself.
    `settings` is what it says of its settings. `on_missed` is awaited when this gateway may have missed events. It may
    raise PoolUnavailable."""

    def __init__(
        self,
        pool: RequestPool,
        gateway: str,
        counters: Counters,
        gauges: Callable[[], dict[str, float]],
        on_missed: Callable[[], Awaitable[None]],
        settings: str = "",
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._gateway = gateway
        self._counters = counters
        self._gauges = gauges
        self._on_missed = on_missed
        self._call = 0
        self._unsent: dict[str, float] | None = None  # counts of a call without a reply; it is repeated unchanged
        self._missed = False
        self._late = 0.0  # seconds that the last sleep took too long
        self.known: Overview | None = None  # the last overview that was read, however old
        self.read_at = 0.0  # when `last_overview` was read, in seconds of the loop's clock
        self._error: PoolUnavailable | None = None  # why the last heartbeat failed
        self._reading = asyncio.Lock()
        self._began_at = -SPACING  # when the last read of `latest_overview` began
        self._latest: Overview | PoolUnavailable | None = None  # its result

    async def run(self) -> None:
        """Send heartbeats until cancelled, also through outages of the pool."""
        while True:
            try:
                await self.beat()
                self._error = None
            except PoolUnavailable as error:
                self._error = error
                log.debug("no heartbeat: %s", error)
            period = PERIOD if self.known and self.known.ready else PERIOD_UNREADY
            due = asyncio.get_running_loop().time() + period
            await asyncio.sleep(period)
            self._late = max(0.0, asyncio.get_running_loop().time() - due)
            self._counters.observe("orca:gateway_loop_lag_seconds", self._late)

    async def beat(self) -> None:
        """One heartbeat. Raises PoolUnavailable."""
        if self._unsent is None:
            self._call += 1
            self._unsent = self._counters.take()
        gauges = self._gauges() | {"lag": self._late}
        self._missed |= not await self._pool.heartbeat(
            self._gateway, self._call, self._unsent, gauges=gauges, settings=self._settings
        )
        self._unsent = None
        if self._missed:
            await self._on_missed()
            self._missed = False
        self.known, self.read_at = await self._pool.overview(), asyncio.get_running_loop().time()

    def last_overview(self) -> Overview:
        """The overview that the last heartbeat read, at no cost to the pool.

        Raises PoolUnavailable if the pool does not accept heartbeats: it would not accept requests either.
        """
        if self._error is not None:
            raise self._error
        if self.known is None or asyncio.get_running_loop().time() - self.read_at > STALE:
            raise PoolUnavailable("no heartbeat reached the pool yet")
        return self.known

    async def latest_overview(self) -> Overview:
        """The overview as of now. Concurrent callers share a read and reads are `SPACING` seconds apart, so that
        frequent calls do not load the pool's server. Raises PoolUnavailable."""
        now = asyncio.get_running_loop().time
        came = now()
        async with self._reading:
            if self._began_at < came:  # no read has begun since
                await asyncio.sleep(max(0.0, self._began_at + SPACING - now()))
                self._began_at = now()
                try:
                    self._latest = await self._pool.overview()
                except PoolUnavailable as error:
                    self._latest = error
        if isinstance(self._latest, PoolUnavailable):
            raise self._latest
        assert self._latest is not None
        return self._latest

    async def figures(self) -> EngineFigures | None:
        """The last known figures of the largest engine; None if there never was an engine. Raises PoolUnavailable."""
        if self.known is None or self.known.figures is None:
            self.known = await self._pool.overview()
        return self.known.figures
