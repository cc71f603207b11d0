"""SchedulerReplica: takes a seat, owns it as long as it can, then takes one again; without a seat it is a spare.

There is one replica more than seats. A spare has loaded everything that a scheduler needs, and watches the processes
that hold the seats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import Any

import ray

from actors.liveness import Lifeline
from actors.ownership import Ownership, SchedulerContext
from actors.placement import cluster_id
from actors.replica import find_model, listen_on_node_address, open_shards
from actors.seat import of_seat, take_seat
from services.logs import configure
from services.loop.iteration_cost import IterationCost
from services.metrics import Counters
from services.pool.pool import RequestPool
from services.settings.sources import load
from services.text import TextTables
from services.tracing.tracer import open_tracer

STANDSTILL = 30.0  # seconds beyond two leases without a call to the pool after which a scheduler counts as dead

log = logging.getLogger(__name__)


class SchedulerReplica:
    """A replica in Ray Serve, which restarts, scales and drains it. It takes no requests from Serve: all requests come
    through the pool."""

    def __init__(self, values: dict[str, Any]) -> None:
        listen_on_node_address()
        self._settings = load(**values)
        configure(self._settings, "scheduler")
        self._pools: list[RequestPool] = []
        self._ownership: Ownership | None = None
        self._draining = False
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._life.add_done_callback(_log_end)

    def check_health(self) -> None:
        """Raises RuntimeError if the task of this scheduler has ended, or has not called the pool for too long.

        Whatever a scheduler does, it calls the pool at least every third of its lease. A dead pool server or engine is
        no failure of the scheduler, which waits for it.
        """
        if self._draining:
            return
        if self._life.done():
            raise RuntimeError(f"the scheduler ended: {self._life.exception()!r}")
        silence = time.monotonic() - max(pool.last_call for pool in self._pools) if self._pools else 0.0
        if silence > STANDSTILL + 2 * self._settings.lease:
            raise RuntimeError(f"the scheduler has done nothing for {silence:.0f} s")

    async def __del__(self) -> None:
        """Drain: finish the iteration, commit it, release the seat. The engine stays for the next owner."""
        self._draining = True
        if not (self._ownership and self._ownership.stop()):
            self._life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._life

    async def _live(self) -> None:
        settings = self._settings
        folder, model = await asyncio.to_thread(find_model, settings)
        text = TextTables.load(folder)
        node = ray.util.get_node_ip_address()
        cluster, lifeline = cluster_id(), Lifeline(node)
        owner = f"{lifeline.address}/{os.getpid()}"
        self._pools = [shard.pool for shard in open_shards(settings, model)]
        counters = Counters(settings.metrics_tenants)
        tracer = await asyncio.to_thread(open_tracer, settings.otlp_traces_endpoint, "scheduler")
        cost = IterationCost()
        engine_lost_at: float | None = None
        try:
            while not self._draining:
                seat = await take_seat(self._pools, cluster, settings.engines, owner, settings.lease)
                pool = of_seat(self._pools, seat.index)
                context = SchedulerContext(settings, pool, model, text, counters, cost, node, lifeline, tracer)
                log.info("took seat %s under epoch %s", seat.name, seat.epoch)
                self._ownership = Ownership(context, seat, engine_lost_at)
                engine_lost_at = await self._ownership.run()
                self._ownership = None
        finally:
            for pool in self._pools:
                await pool.close()
            if tracer:
                await asyncio.to_thread(tracer.close)


def _log_end(life: asyncio.Task[None]) -> None:
    if not life.cancelled() and (error := life.exception()):
        log.error("the scheduler ended", exc_info=error)
