"""Ray Serve's autoscaling: schedulers with their engines by the load of the pool, gateways by their streams.

Schedulers take no requests from Serve, whose own policy would therefore see no load. `EnginePolicy` reads the pool
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
from collections.abc import Sequence
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from actors.placement import cluster_id
from actors.replica import find_model, open_shards
from actors.scaling import LastAnswers, scheduler_replicas, want_engines
from services.autoscaling import EngineCount, Scaling, load_of
from services.background import keep_running
from services.errors import PoolUnavailable
from services.overview import Overview, combined
from services.pool.pool import RequestPool
from services.seats import ClusterSeats
from services.settings.settings import DOWNSCALE, Settings
from services.settings.sources import load

INTERVAL = 1.0  # seconds between readings of the pool
STREAMS_PER_GATEWAY = 256  # open requests for which one is enough

log = logging.getLogger("ray.serve")  # the policy runs in Serve's controller, which writes this log


def scheduler_scaling(settings: Settings, values: dict[str, Any]) -> AutoscalingConfig:
    """Serve's autoscaling of schedulers: one for each engine, and the spare. `values` are settings by name as the
    schedulers get them."""
    return AutoscalingConfig(
        min_replicas=settings.min_engines + 1,
        initial_replicas=settings.engines + 1,
        max_replicas=settings.max_engines + 1,
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
        upscale_delay_s=settings.upscale_delay,
        downscale_delay_s=DOWNSCALE * settings.upscale_delay,
    )


def scaling_of(settings: Settings) -> Scaling:
    return Scaling(
        min_engines=settings.min_engines,
        max_engines=settings.max_engines,
        requests_per_engine=settings.max_batch_size,
        upscale_delay=settings.upscale_delay,
        downscale_delay=DOWNSCALE * settings.upscale_delay,
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
    """Follows the load of the pool. `replicas` is the number of schedulers that are needed, 0 before it is known."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopped = threading.Event()
        self.replicas = 0

    def start(self) -> None:
        threading.Thread(target=self._live, name="autoscaling", daemon=True).start()

    def stop(self) -> None:
        """End the thread within `INTERVAL` seconds."""
        self._stopped.set()

    def _live(self) -> None:
        asyncio.run(keep_running(self._follow))

    async def _follow(self) -> None:
        """Decide each `INTERVAL` seconds until stopped. While the pool is away, the number stays as it is."""
        settings = self._settings
        _, model = await asyncio.to_thread(find_model, settings)
        pools, cluster = [shard.pool for shard in open_shards(settings, model)], cluster_id()
        known = KnownPools()
        count: EngineCount | None = None
        try:
            while not self._stopped.is_set():
                with contextlib.suppress(PoolUnavailable):
                    if count is None:  # this controller may follow one that has died
                        overviews = await known.overviews.of(pool.overview() for pool in pools)
                        wanted = combined(overviews).wanted.get(cluster, settings.engines)
                        count = EngineCount(scaling_of(settings), wanted)
                    self.replicas = await decide(pools, cluster, count, settings.engines, known)
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
    pools: Sequence[RequestPool], cluster: str, count: EngineCount, configured: int, known: KnownPools
) -> int:
    """Read the load, write the number of wanted engines to all shards of the pool, and return that of schedulers.

    A scheduler that drains its seat stays until the seat is gone. The pool has the number `configured` until another
    one is written. A shard that missed a number gets it later. While a shard is away, its last known load counts.
    Raises PoolUnavailable if all are away, or one that has never answered.
    """
    overviews = await known.overviews.of(pool.overview() for pool in pools)
    overview = combined(overviews)
    before, wanted = count.wanted, count.update(time.monotonic(), load := load_of(overview, cluster))
    if wanted != before:
        log.info("engines wanted: %d instead of %d, for %s", wanted, before, load)
    missed = [pool for pool, one in zip(pools, overviews, strict=True) if one.wanted.get(cluster) != wanted]
    with contextlib.suppress(PoolUnavailable):
        await want_engines(missed, cluster, wanted)
    return scheduler_replicas(await known.seats.of(pool.engines(cluster, configured) for pool in pools))
