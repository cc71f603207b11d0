"""SchedulerReplica: takes a seat, owns it as long as it can, then takes one again; without a seat it is a spare.

There is one replica more than engines, of all models. A spare has loaded everything that a scheduler of any model
needs, and watches the processes that hold the seats. The owner of the default model's first seat lets the number of
replicas follow the number of engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import ray

from actors.liveness import Lifeline
from actors.ownership import Ownership, SchedulerContext
from actors.placement import cluster_id
from actors.ray_private import listen_on_node_address
from actors.replica import find_model, open_shards
from actors.scaling import announce, follow
from actors.seat import ModelSeats, Seat, take_seat
from services.background import keep_running, start
from services.limits import return_memory
from services.logs import configure
from services.loop.iteration_cost import IterationCost
from services.metrics import Counters
from services.models import ModelInfo
from services.pool.pool import RequestPool
from services.scheduling import CostModel
from services.seats import cluster_of_model
from services.settings.settings import Settings
from services.settings.sources import load
from services.text import TextTables
from services.tracing.tracer import Tracer, open_tracer

STANDSTILL = 30.0  # seconds beyond two leases without a call to the pool after which a scheduler counts as dead

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerModel:
    """What a scheduler process has of one model, and keeps from one ownership to the next."""

    settings: Settings
    info: ModelInfo
    text: TextTables
    pools: list[RequestPool]
    seats: ModelSeats
    bounds: IterationCost = field(default_factory=IterationCost)
    cost: CostModel = field(default_factory=CostModel)

    @classmethod
    def load(cls, settings: Settings, cluster: str, engines: Callable[[], int]) -> Self:
        """Raises ModelError, SettingsError."""
        folder, info = find_model(settings)
        pools = [shard.pool for shard in open_shards(settings, info)]
        seats = ModelSeats(settings.number, pools, cluster_of_model(cluster, settings.number), engines)
        return cls(settings, info, TextTables.load(folder, info.pooling is None), pools, seats)

    def context(
        self, seat: Seat, counters: Counters, owner: str, node: str, lifeline: Lifeline, tracer: Tracer | None
    ) -> SchedulerContext:
        """What the owner of a seat of this model needs."""
        pool = self.pools[seat.shard]
        own = self.settings, pool, self.info, self.text, counters, self.bounds, self.cost
        return SchedulerContext(*own, owner, node, lifeline, tracer)


class SchedulerReplica:
    """A replica in Ray Serve, which restarts, scales and drains it. It takes no requests from Serve: all requests come
    through the pool."""

    def __init__(self, values: dict[str, Any]) -> None:
        listen_on_node_address()
        self._settings = load(**values)
        configure(self._settings, "scheduler")
        self._models: list[SchedulerModel] = []
        self._ownership: Ownership | None = None
        self._engines: list[int] = []  # of each model, in the configuration
        self._configured = asyncio.Event()  # set when the configuration was read
        self._announced = asyncio.Event()  # set when the first pool was told of it
        self._draining = False
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._life.add_done_callback(_log_end)

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Serve calls this with the deployment's `user_config`, at the start and when it has changed: `engines` is the
        number of engines that the cluster is to have, with several models a list of these.

        Raises ValueError for less than one for each shard.
        """
        self._engines = engines_in(config, [len(model.shards) for model in self._settings.each])
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
        silence = time.monotonic() - max(pool.last_call for pool in self._pools) if self._models else 0.0
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
        node = ray.util.get_node_ip_address()
        cluster, lifeline = cluster_id(), Lifeline(node)
        owner = f"{lifeline.address}/{os.getpid()}"
        for place, each in enumerate(settings.each):
            engines = partial(self._configured_engines, place)
            self._models.append(await asyncio.to_thread(SchedulerModel.load, each, cluster, engines))
        return_memory()
        counters = Counters(settings.metrics_tenants)
        tracer = await asyncio.to_thread(open_tracer, settings.otlp_traces_endpoint, "scheduler")
        engine_lost_at: float | None = None
        announcing = start(keep_running(self._announce), "the configuration")
        await self._announced.wait()
        try:
            while not self._draining:
                seats = [model.seats for model in self._models]
                seat = await take_seat(seats, owner, settings.constants.lease, counters)
                model = next(model for model in self._models if model.settings.number == seat.model)
                context = model.context(seat, counters, owner, node, lifeline, tracer)
                log.info("took seat %s under epoch %s", seat.name, seat.epoch)
                self._ownership = Ownership(context, seat, engine_lost_at)
                engine_lost_at = await self._own(self._ownership, seat)
                self._ownership = None
        finally:
            announcing.cancel()
            for pool in self._pools:
                await pool.close()
            if tracer:
                await asyncio.to_thread(tracer.close)

    @property
    def _pools(self) -> list[RequestPool]:
        return [pool for model in self._models for pool in model.pools]

    def _configured_engines(self, place: int) -> int:
        """The number of engines in the configuration of the model at this place."""
        return self._engines[place]

    async def _own(self, ownership: Ownership, seat: Seat) -> float | None:
        """Run the ownership. The owner of the first seat also takes care of the number of schedulers."""
        if seat.index > 0 or seat.model != self._models[0].settings.number:
            return await ownership.run()
        following = partial(follow, [model.seats for model in self._models], self._settings.constants.lease / 3)
        task = start(keep_running(following), "the number of schedulers")
        try:
            return await ownership.run()
        finally:
            task.cancel()

    async def _announce(self) -> None:
        """Tell all pools the number of engines of each configuration that is read; a pool that is away, later."""
        telling: list[asyncio.Task[None]] = []
        while True:
            await self._configured.wait()
            self._configured.clear()
            for task in telling:
                task.cancel()
            pause = self._settings.constants.lease / 3
            seats = [model.seats for model in self._models]
            calls = (announce(pool, each.cluster, each.engines(), pause) for each in seats for pool in each.pools)
            telling = [start(call, "announcing the number of engines") for call in calls]
            await asyncio.wait(telling, return_when=asyncio.FIRST_COMPLETED)
            self._announced.set()


def engines_in(config: dict[str, Any], shards: Sequence[int]) -> list[int]:
    """The number of engines of each model in a `user_config`. `shards`: how many each has. Raises ValueError for less
    than one for each shard: requests of a shard without an engine would wait for ever."""
    given = config["engines"]
    engines = [int(number) for number in given] if isinstance(given, (list, tuple)) else [int(given)]
    if len(engines) != len(shards):
        raise ValueError(f"user_config: engines has the engines of {len(engines)} models, {len(shards)} are served")
    for number, needed in zip(engines, shards, strict=True):
        if number < needed:
            raise ValueError(f"user_config: engines is {number}, at least {needed} are needed, one for each shard")
    return engines


def _log_end(life: asyncio.Task[None]) -> None:
    if not life.cancelled() and (error := life.exception()):
        log.error("the scheduler ended", exc_info=error)
