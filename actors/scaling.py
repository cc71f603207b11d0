"""Scaling: how many engines a cluster is to have, how many schedulers Serve runs for them, and how many gateways.

The number of engines is kept in the pool, which all schedulers share and which outlives them. It comes from the
configuration (the setting `engines`, or `user_config` of the deployment `scheduler`), from `orca engines`, or from
autoscaling; the one that was given last counts.

Schedulers take no requests from Serve, whose own autoscaling would therefore see no load. `EnginePolicy` reads the pool
instead, decides how many engines are wanted, writes that number to the pool and returns the number of schedulers. An
engine's placement group then asks Ray for a node; where Ray's autoscaler runs, it adds one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from actors.knobs import CPU_BATCH
from actors.placement import ADDED, cluster_id
from actors.ray_private import set_replicas
from actors.replica import find_model, open_shards
from actors.seat import ModelSeats
from services.autoscaling import EngineCount, Scaling, load_of
from services.background import keep_running
from services.engine.settings import MOST_REQUESTS
from services.errors import ModelError, PoolUnavailable, SettingsError
from services.model_list import ListedModel, ModelList
from services.overview import Overview, combined
from services.pool.pool import RequestPool
from services.seats import ClusterSeats, cluster_of_model
from services.settings.settings import Settings
from services.settings.sources import load

REFRESH = 60.0  # seconds after which Serve is told the number again: deploying a config again resets it
INTERVAL = 1.0  # seconds between readings of the pool by the policy
STREAMS_PER_GATEWAY = 256  # open requests for which one is enough

T = TypeVar("T")

log = logging.getLogger(__name__)
serve_log = logging.getLogger("ray.serve")  # the policy runs in Serve's controller, which writes this log


class LastAnswers(Generic[T]):
    """The last answer of each pool, which counts while the pool is away: it does not hold up the others."""

    def __init__(self) -> None:
        self._known: dict[int, T] = {}

    async def of(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """The answers to one call of each pool, always in the same order. Raises PoolUnavailable if no pool answers, or
        one is away that has never answered."""
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, PoolUnavailable) or len(errors) == len(answers):
                raise error
        for place, answer in enumerate(answers):
            if not isinstance(answer, BaseException):
                self._known[place] = answer
        if len(self._known) < len(answers):
            raise errors[0]
        return [self._known[place] for place in range(len(answers))]


async def want_engines(pools: Sequence[RequestPool], cluster: str, engines: int) -> None:
    """Let a cluster have this number of engines, which are dealt to the pools in turn. Raises ValueError for less than
    one for each pool, and PoolUnavailable if a pool is away; the others have the number then."""
    if engines < len(pools):
        raise ValueError(f"a cluster needs at least {len(pools)} engine(s), one for each pool, not {engines}")
    told = await asyncio.gather(*(pool.scale(cluster, engines) for pool in pools), return_exceptions=True)
    for error in told:
        if error:
            raise error


def schedulers_needed(pools: Sequence[ClusterSeats]) -> int:
    """The schedulers that a model with these seats in its pools needs: one for each engine that it is to have, or has
    until it is removed. Two pools may have a seat of the same index, if the list of shards has changed."""
    return max(max(seats.wanted for seats in pools), len({index for seats in pools for index in seats.indices}))


async def announce(pool: RequestPool, cluster: str, configured: int, pause: float) -> None:
    """Tell the pool the number of a configuration that was just read. While the pool is away, try again after `pause`
    seconds."""
    while True:
        try:
            await pool.engines(cluster, configured, announce=True)
            return
        except PoolUnavailable as error:
            log.warning("waiting for the pool: %s", error)
            await asyncio.sleep(pause)


async def follow(models: Sequence[ModelSeats], period: float, running: int) -> None:
    """Let Serve run as many schedulers as the models need, and a spare, looking every `period` seconds; `models` may
    change. To be called in a replica of their deployment, for which Serve has the number `running`. Returns if Serve
    does not allow it: its application has no `external_scaler_enabled`, as with its autoscaling."""
    context = serve.get_replica_context()
    told_at = time.monotonic()
    known: dict[str, LastAnswers[ClusterSeats]] = {}
    while True:
        await asyncio.sleep(period)
        try:
            found = []
            for model in [*models]:
                answers = known.setdefault(model.tag, LastAnswers())
                calls = (pool.engines(model.cluster, model.engines()) for pool in model.pools)
                found.append(await answers.of(calls))
            needed = sum(map(schedulers_needed, found)) + 1
            if needed != running or time.monotonic() - told_at > REFRESH:
                if not await asyncio.to_thread(set_replicas, context.app_name, context.deployment, needed):
                    log.warning("Serve keeps its number of schedulers: set external_scaler_enabled in the config")
                    return
                running, told_at = needed, time.monotonic()
        except PoolUnavailable as error:
            log.warning("waiting for the pool: %s", error)


def scheduler_scaling(settings: Settings, values: dict[str, Any]) -> AutoscalingConfig:
    """Serve's autoscaling of schedulers: one for each engine, and the spare. `values` are settings by name as the
    schedulers get them."""
    models, added = settings.each, ADDED * bool(settings.operator_api_key)
    return AutoscalingConfig(
        min_replicas=sum(each.fewest_engines if each.max_engines else each.engines for each in models) + 1,
        initial_replicas=sum(each.engines for each in models) + 1,
        max_replicas=sum(each.most_engines for each in models) + 1 + added,
        upscale_delay_s=0.0,  # the policy has its own delays
        downscale_delay_s=0.0,
        policy=AutoscalingPolicy(policy_function=EnginePolicy, policy_kwargs=values),
    )


def gateway_scaling(settings: Settings) -> AutoscalingConfig:
    """Serve's autoscaling of gateways, by the requests that they answer."""
    return AutoscalingConfig(
        min_replicas=settings.gateways,
        initial_replicas=settings.gateways,
        max_replicas=settings.max_gateways,
        target_ongoing_requests=STREAMS_PER_GATEWAY,
        upscale_delay_s=settings.constants.upscale_delay,
        downscale_delay_s=settings.constants.downscale_delay,
    )


def scaling_of(settings: Settings) -> Scaling:
    batch = settings.max_batch_size
    if batch == "auto":
        batch = MOST_REQUESTS if settings.device == "cuda" else CPU_BATCH
    return Scaling(
        min_engines=settings.fewest_engines,
        max_engines=settings.max_engines,
        requests_per_engine=batch,
        upscale_delay=settings.constants.upscale_delay,
        downscale_delay=settings.constants.downscale_delay,
    )


class EnginePolicy:
    """The policy of the deployment `scheduler`. Serve's controller calls it ten times a second and waits for it, so a
    thread talks to the pool."""

    def __init__(self, **values: Any) -> None:
        """`values` are settings by name."""
        self._scaler = EngineScaler(load(**values))
        weakref.finalize(self, self._scaler.stop)  # Serve makes a new policy when the configuration changes
        self._scaler.start()

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The number of schedulers; as many as there are until the pool has been read."""
        return self._scaler.replicas or context.target_num_replicas, {}


class EngineScaler:
    """Follows the load of each model of the list. `replicas` is the number of schedulers that are needed, 0 before it
    is known."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listed: dict[str, ListedModel] = {}  # by the tags of the models
        self._needed: dict[str, int] = {}  # schedulers of each model, by its tag
        self._stopped = threading.Event()

    @property
    def replicas(self) -> int:
        known = self._listed and self._listed.keys() <= self._needed.keys()
        return sum(self._needed[tag] for tag in self._listed) + 1 if known else 0

    def start(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self.run()), name="autoscaling", daemon=True).start()

    def stop(self) -> None:
        """End the thread within `INTERVAL` seconds."""
        self._stopped.set()

    async def run(self) -> None:
        """Follow the models of the list until stopped. While the pool is away, they stay as they are."""
        listing, following = ModelList(self._settings), dict[str, tuple[Settings, asyncio.Task[None]]]()
        try:
            while not self._stopped.is_set():
                with contextlib.suppress(PoolUnavailable):
                    self._listed = {one.settings.tag: one for one in await listing.read()}
                for tag, (settings, task) in [*following.items()]:
                    if tag not in self._listed or self._listed[tag].settings != settings:
                        task.cancel()
                        del following[tag]
                        self._needed.pop(tag, None)
                for tag in self._listed.keys() - following.keys():
                    one = self._listed[tag]
                    part = keep_running(partial(self._follow, one))
                    following[tag] = one.settings, asyncio.create_task(part)
                await asyncio.sleep(INTERVAL)
        finally:
            for _, task in following.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in following.values()), return_exceptions=True)
            await listing.close()

    async def _follow(self, one: ListedModel) -> None:
        """Decide each `INTERVAL` seconds, if the model has `max_engines` and does not leave. While the pool is away,
        the number stays as it is. An added model that cannot be loaded does not hold up the others."""
        settings, tag = one.settings, one.settings.tag
        try:
            _, model = await asyncio.to_thread(find_model, settings)
        except (ModelError, SettingsError):
            if one.added:
                self._needed.setdefault(tag, 0)
                await asyncio.sleep(REFRESH)
            raise
        pools = [shard.pool for shard in open_shards(settings, model)]
        cluster = cluster_of_model(cluster_id(), tag)
        known = KnownPools()
        count: EngineCount | None = None
        try:
            while True:
                leaving = tag in self._listed and self._listed[tag].leaving  # others remove its engines then
                with contextlib.suppress(PoolUnavailable):
                    if count is None and settings.max_engines:  # this controller may follow one that has died
                        overviews = await known.overviews.of(pool.overview() for pool in pools)
                        wanted = combined(overviews).wanted.get(cluster, settings.engines)
                        count = EngineCount(scaling_of(settings), wanted)
                    configured = 0 if leaving else settings.engines
                    self._needed[tag] = await decide(pools, cluster, None if leaving else count, configured, known)
                await asyncio.sleep(INTERVAL)
        finally:
            for pool in pools:
                await pool.close()


class KnownPools:
    """What the shards of a pool have last said."""

    def __init__(self) -> None:
        self.overviews = LastAnswers[Overview]()
        self.seats = LastAnswers[ClusterSeats]()


async def decide(
    pools: Sequence[RequestPool], cluster: str, count: EngineCount | None, configured: int, known: KnownPools
) -> int:
    """Read the load, write the number of wanted engines to all shards of the pool, and return that of schedulers
    without the spare. With no `count`, the number of engines is left to others.

    A scheduler that drains its seat stays until the seat is gone. The pool has the number `configured` until another
    one is written. A shard that missed a number gets it later. While a shard is away, its last known load counts.
    Raises PoolUnavailable if all are away, or one that has never answered.
    """
    if count:
        await _want_by_load(pools, cluster, count, known)
    return schedulers_needed(await known.seats.of(pool.engines(cluster, configured) for pool in pools))


async def _want_by_load(pools: Sequence[RequestPool], cluster: str, count: EngineCount, known: KnownPools) -> None:
    overviews = await known.overviews.of(pool.overview() for pool in pools)
    overview = combined(overviews)
    before, wanted = count.wanted, count.update(time.monotonic(), load := load_of(overview, cluster))
    if wanted != before:
        serve_log.info("engines wanted: %d instead of %d, for %s", wanted, before, load)
    missed = [pool for pool, one in zip(pools, overviews, strict=True) if one.wanted.get(cluster) != wanted]
    with contextlib.suppress(PoolUnavailable):
        await want_engines(missed, cluster, wanted)
