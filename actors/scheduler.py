"""SchedulerReplica: takes a seat, owns it as long as it can, then takes one again; without a seat it is a spare.

There is one replica more than engines. A spare has loaded everything that a scheduler needs, and watches the processes
that hold the seats. The owner of the first seat lets the number of replicas follow the number of engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from functools import partial
from typing import Any

import ray

from actors.liveness import Lifeline
from actors.ownership import Ownership, SchedulerContext
from actors.placement import cluster_id
from actors.ray_private import listen_on_node_address
from actors.replica import find_model, open_shards
from actors.scaling import announce, follow
from actors.seat import Seat, take_seat
from services.background import keep_running, start
from services.limits import return_memory
from services.logs import configure
from services.loop.iteration_cost import IterationCost
from services.metrics import Counters
from services.pool.pool import RequestPool
from services.scheduling import CostModel
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
        self._engines = 0  # in the configuration
        self._configured = asyncio.Event()  # set when the configuration was read
        self._announced = asyncio.Event()  # set when the first pool was told of it
        self._draining = False
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._life.add_done_callback(_log_end)

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Serve calls this with the deployment's `user_config`, at the start and when it has changed: `engines` is the
        number of engines that the cluster is to have.

        Raises ValueError for less than one for each shard.
        """
        self._engines = engines_in(config, len(self._settings.shards))
        self._configured.set()

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
        if silence > STANDSTILL + 2 * self._settings.constants.lease:
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
        text = TextTables.load(folder, model.pooling is None)
        return_memory()
        node = ray.util.get_node_ip_address()
        cluster, lifeline = cluster_id(), Lifeline(node)
        owner = f"{lifeline.address}/{os.getpid()}"
        self._pools = [shard.pool for shard in open_shards(settings, model)]
        counters = Counters(settings.metrics_tenants)
        tracer = await asyncio.to_thread(open_tracer, settings.otlp_traces_endpoint, "scheduler")
        bounds, cost = IterationCost(), CostModel()
        engine_lost_at: float | None = None
        announcing = start(keep_running(partial(self._announce, cluster)), "the configuration")
        await self._announced.wait()
        try:
            while not self._draining:
                lease, engines = settings.constants.lease, lambda: self._engines
                seat = await take_seat(self._pools, cluster, engines, owner, lease, counters)
                pool = self._pools[seat.shard]
                context = SchedulerContext(
                    settings, pool, model, text, counters, bounds, cost, owner, node, lifeline, tracer
                )
                log.info("took seat %s under epoch %s", seat.name, seat.epoch)
                self._ownership = Ownership(context, seat, engine_lost_at)
                engine_lost_at = await self._own(self._ownership, seat, cluster)
                self._ownership = None
        finally:
            announcing.cancel()
            for pool in self._pools:
                await pool.close()
            if tracer:
                await asyncio.to_thread(tracer.close)

    async def _own(self, ownership: Ownership, seat: Seat, cluster: str) -> float | None:
        """Run the ownership. The owner of the first seat also takes care of the number of schedulers."""
        if seat.index > 0:
            return await ownership.run()
        following = partial(follow, self._pools, cluster, lambda: self._engines, self._settings.constants.lease / 3)
        task = start(keep_running(following), "the number of schedulers")
        try:
            return await ownership.run()
        finally:
            task.cancel()

    async def _announce(self, cluster: str) -> None:
        """Tell all pools the number of engines of each configuration that is read; a pool that is away, later."""
        telling: list[asyncio.Task[None]] = []
        while True:
            await self._configured.wait()
            self._configured.clear()
            for task in telling:
                task.cancel()
            calls = (announce(pool, cluster, self._engines, self._settings.constants.lease / 3) for pool in self._pools)
            telling = [start(call, "announcing the number of engines") for call in calls]
            await asyncio.wait(telling, return_when=asyncio.FIRST_COMPLETED)
            self._announced.set()


def engines_in(config: dict[str, Any], shards: int) -> int:
    """The number of engines in a `user_config`. Raises ValueError for less than one for each shard: requests of a shard
    without an engine would wait for ever."""
    if (engines := int(config["engines"])) < shards:
        raise ValueError(f"user_config: engines is {engines}, at least {shards} are needed, one for each shard")
    return engines


def _log_end(life: asyncio.Task[None]) -> None:
    if not life.cancelled() and (error := life.exception()):
        log.error("the scheduler ended", exc_info=error)
