"""Shard: one pool as this gateway uses it, with its reader of events, its heartbeat and its recovery."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from math import inf

from gateway.errors import GatewayStops
from gateway.executor import FairExecutor
from gateway.pool_client.event_reader import EventReader
from gateway.pool_client.following import AbandonedRequests, Generations
from gateway.pool_client.heartbeat import Heartbeat
from gateway.pool_client.recovery import Recovery
from gateway.pool_client.request_record import RequestRecords
from services.background import keep_running
from services.errors import PoolUnavailable
from services.metrics import Counters
from services.overview import Overview
from services.pool.shards import PoolShard

RECONNECT = 0.5  # seconds

log = logging.getLogger(__name__)


class Shard:
    """`gauges` returns what the gateway reports of itself, and `settings` is what it says of its settings."""

    def __init__(
        self,
        shard: PoolShard,
        gateway: str,
        counters: Counters,
        executor: FairExecutor,
        records: RequestRecords,
        gauges: Callable[[], dict[str, float]],
        settings: str,
    ) -> None:
        self.number, self.state = shard.number, shard.state
        self.pool = pool = shard.pool
        self._gateway = gateway
        self.reader = EventReader(pool, gateway)
        self._abandoned = AbandonedRequests(pool, gateway, self.reader.follows)
        self.generations = Generations(pool, self.reader, self._abandoned, counters, executor, records)
        self._recovery = Recovery(pool, self.reader, self._abandoned)
        self.heartbeat = Heartbeat(pool, gateway, counters, gauges, self.reader.restart, settings)
        self._sent, self._sent_after = 0, 0.0  # sequences, and the heartbeat since which they were sent

    async def run(self) -> None:
        """Run until cancelled, also while the pool is unavailable."""
        await self._connect()
        await asyncio.gather(
            keep_running(self.heartbeat.run), keep_running(self.reader.run), keep_running(self._recovery.run)
        )

    async def stop(self) -> None:
        """Close the open streams, and unregister from the pool if it is available. To be called after `run` ended."""
        await self._abandoned.stop()
        self.reader.fail_all(GatewayStops())
        with contextlib.suppress(PoolUnavailable):
            await self.pool.unregister(self._gateway)
        await self.pool.close()

    def overview(self) -> Overview:
        """The overview of the last second, at no cost to the pool. Raises PoolUnavailable."""
        if self.reader.pool_unavailable:
            raise PoolUnavailable("the pool is unavailable")
        return self.heartbeat.last_overview()

    def load(self) -> float:
        """The sequences of the pool for each engine that is ready, as of the last second, with those that this gateway
        has sent since. Infinite without an engine. Raises PoolUnavailable."""
        overview = self.overview()
        if self._sent_after != self.heartbeat.read_at:
            self._sent, self._sent_after = 0, self.heartbeat.read_at
        sequences, engines = overview.waiting + overview.running + self._sent, overview.ready_engines
        return sequences / engines if engines else inf

    def sends(self, sequences: int) -> None:
        """Count sequences that are about to be submitted."""
        self._sent += sequences

    async def _connect(self) -> None:
        while True:
            try:
                return await self.pool.connect()
            except PoolUnavailable as error:
                log.warning("waiting for the pool: %s", error)
            except Exception:
                log.exception("connecting to the pool failed; it is tried again")
            await asyncio.sleep(RECONNECT)
