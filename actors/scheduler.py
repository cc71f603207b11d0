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
from services.errors import ModelError, PoolUnavailable, SettingsError
from services.limits import return_memory
from services.logs import configure
from services.loop.iteration_cost import IterationCost
from services.metrics import Counters
from services.model_list import ListedModel, ModelList
from services.models import ModelInfo
from services.pool.pool import RequestPool
from services.scheduling import CostModel
from services.seats import cluster_of_model
from services.settings.settings import Settings
from services.settings.sources import load
from services.text import TextTables
from services.tracing.tracer import Tracer, open_tracer

LEAVING = 5.0  # seconds after which every gateway knows that a model takes no new requests
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
        seats = ModelSeats(settings.tag, pools, cluster_of_model(cluster, settings.tag), engines)
        return cls(settings, info, TextTables.load(folder, info.pooling is None), pools, seats)

    async def come_back(self) -> None:
        """Let it have engines again if it went from this cluster earlier. Raises PoolUnavailable."""
        for pool in self.pools:
            if not (await pool.engines(self.seats.cluster, self.settings.engines)).wanted:
                await pool.scale(self.seats.cluster, self.settings.engines)

    async def gone(self) -> bool:
        """Whether it has no requests and no engines any more. Without requests, its engines go. Those of another
        cluster have to go there, before the list forgets the model. Raises PoolUnavailable."""
        overviews = [await pool.overview() for pool in self.pools]
        if any(overview.waiting + overview.running for overview in overviews):
            await self.come_back()  # the cluster may have been started meanwhile
            return False
        for pool in self.pools:
            await pool.scale(self.seats.cluster, 0)
        seats = [await pool.engines(self.seats.cluster, 0) for pool in self.pools]
        held = any(seat.alive for overview in overviews for seat in overview.seats)
        return not held and not any(each.indices for each in seats)

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
        self._seats: list[ModelSeats] = []  # of the models
        self._leaving: dict[str, float] = {}  # when a model that takes no new requests was first seen so, by its tag
        self._owned: Seat | None = None
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
        listing = ModelList(settings)
        await self._read_list(listing, cluster)
        return_memory()
        counters = Counters(settings.metrics_tenants)
        tracer = await asyncio.to_thread(open_tracer, settings.otlp_traces_endpoint, "scheduler")
        engine_lost_at: float | None = None
        announcing = start(keep_running(self._announce), "the configuration")
        await self._announced.wait()
        following = start(keep_running(partial(self._follow_list, listing, cluster)), "the list of the models")
        try:
            while not self._draining:
                seat = await take_seat(self._seats, owner, settings.constants.lease, counters)
                model = next((model for model in self._models if model.settings.tag == seat.model), None)
                if model is None:  # it was removed just now, and the seat goes with it
                    continue
                context = model.context(seat, counters, owner, node, lifeline, tracer)
                log.info("took seat %s under epoch %s", seat.name, seat.epoch)
                self._ownership, self._owned = Ownership(context, seat, engine_lost_at), seat
                engine_lost_at = await self._own(self._ownership)
                self._ownership = self._owned = None
        finally:
            announcing.cancel()
            following.cancel()
            await listing.close()
            for pool in self._pools:
                await pool.close()
            if tracer:
                await asyncio.to_thread(tracer.close)

    @property
    def _pools(self) -> list[RequestPool]:
        return [pool for model in self._models for pool in model.pools]

    # --- the list of the models ---

    async def _read_list(self, listing: ModelList, cluster: str) -> None:
        """Load the models of the list. Where its server is only one of several shards and away, those of the
        configuration: requests in the other shards wait for a scheduler."""
        while not self._models:
            try:
                await self._update(await listing.read(), cluster)
            except PoolUnavailable as error:
                log.warning("waiting for the pool: %s", error)
                if self._models:
                    return
                if len(self._settings.shards) == 1:
                    await asyncio.sleep(self._settings.constants.lease / 3)
                    continue
                for each in self._settings.each:
                    await self._load(ListedModel(each), cluster)

    async def _follow_list(self, listing: ModelList, cluster: str) -> None:
        """Serve the models of the list. The owner of the default model's first seat removes those that have left."""
        while True:
            await asyncio.sleep(self._settings.constants.lease / 3)
            with contextlib.suppress(PoolUnavailable):
                await self._update(await listing.read(), cluster)
                if self._leads:
                    await self._remove_left(listing)

    async def _update(self, listed: Sequence[ListedModel], cluster: str) -> None:
        found = {one.settings.tag: one for one in listed}
        for model in [*self._models]:
            one = found.get(model.settings.tag)
            if one is None or one.settings != model.settings:  # it was removed, and perhaps added again
                await self._forget(model)
        known = {model.settings.tag: model for model in self._models}
        for tag, one in found.items():
            served = known.get(tag) or await self._load(one, cluster)
            if served is None or served.settings != one.settings:
                continue
            if one.leaving:
                self._leaving.setdefault(tag, time.monotonic())
            elif self._leaving.pop(tag, None) is not None or tag not in known:
                await served.come_back()
        order = {tag: place for place, tag in enumerate(found)}  # all agree which model is the default
        self._models.sort(key=lambda model: order.get(model.settings.tag, len(order)))

    async def _load(self, one: ListedModel, cluster: str) -> SchedulerModel | None:
        """A model that is new in the list. One that was added and cannot be loaded is left to a later look. Raises
        ModelError and SettingsError for a model of the configuration."""
        tag = one.settings.tag
        configured = [] if one.added else [each.tag for each in self._settings.each]
        place = configured.index(tag) if tag in configured else None
        try:
            engines = partial(self._engines_of, one.settings, place)
            model = await asyncio.to_thread(SchedulerModel.load, one.settings, cluster, engines)
        except (ModelError, SettingsError) as error:
            if not one.added:
                raise
            log.error("%s cannot be loaded: %s", one.settings.model, error)
            return None
        self._models.append(model)
        self._seats.append(model.seats)
        return model

    async def _forget(self, model: SchedulerModel) -> None:
        """Take no more seats of a model. If this process has one, it gives it back first."""
        self._leaving.pop(model.settings.tag, None)
        if model.seats in self._seats:
            self._seats.remove(model.seats)
        if self._ownership and self._owned and self._owned.model == model.settings.tag:
            self._ownership.stop()
            return
        self._models.remove(model)
        for pool in model.pools:
            await pool.close()

    def _engines_of(self, model: Settings, place: int | None) -> int:
        """The configured number of engines of a model, which is at this `place` of the configuration if it was not
        added later. A pool that has forgotten a model which left gets none."""
        if model.tag in self._leaving:
            return 0
        return model.engines if place is None or place >= len(self._engines) else self._engines[place]

    async def _remove_left(self, listing: ModelList) -> None:
        """Let models go that have left: without requests first their engines, then they themselves."""
        for model in [*self._models]:
            since = self._leaving.get(model.settings.tag)
            if since is not None and time.monotonic() > since + LEAVING and await model.gone():
                log.info("%s is removed", model.settings.model)
                await listing.drop(model.settings)

    @property
    def _leads(self) -> bool:
        """Whether this process owns the first seat of the default model."""
        staying = (model.settings.tag for model in self._models if model.settings.tag not in self._leaving)
        return self._owned is not None and self._owned.index == 0 and self._owned.model == next(staying, None)

    # --- seats ---

    async def _own(self, ownership: Ownership) -> float | None:
        """Run the ownership. The owner of the first seat also takes care of the number of schedulers."""
        task = start(keep_running(self._follow_engines), "the number of schedulers")
        try:
            return await ownership.run()
        finally:
            task.cancel()

    async def _follow_engines(self) -> None:
        """Take care of the number of schedulers while this process leads, also if it does so later: the default model
        may be removed."""
        period = self._settings.constants.lease / 3
        while not self._leads:  # noqa: ASYNC110 - it is computed anew each time
            await asyncio.sleep(period)
        await follow(self._seats, period, sum(self._engines) + 1)

    async def _announce(self) -> None:
        """Tell all pools the number of engines of each configuration that is read; a pool that is away, later."""
        telling: list[asyncio.Task[None]] = []
        while True:
            await self._configured.wait()
            self._configured.clear()
            for task in telling:
                task.cancel()
            pause = self._settings.constants.lease / 3
            staying = [one for one in self._seats if one.tag not in self._leaving]
            calls = (announce(pool, one.cluster, one.engines(), pause) for one in staying for pool in one.pools)
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
