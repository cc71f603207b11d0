"""Scaling: how many engines a cluster is to have, and how many schedulers Serve runs for them.

The number is kept in the pool, which all schedulers share and which outlives them. It comes from the configuration
(the setting `engines`, or `user_config` of the deployment `scheduler`), from `orca engines`, or from autoscaling; the
one that was given last counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import ray
from ray import serve
from ray.serve._private.common import DeploymentID
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve._private.exceptions import ExternalScalerDisabledError

from services.errors import PoolUnavailable
from services.seats import ClusterSeats

REFRESH = 60.0  # seconds after which Serve is told the number again: deploying a config again resets it

T = TypeVar("T")

log = logging.getLogger(__name__)


class Scales(Protocol):
    """What `want_engines` needs of a pool."""

    async def scale(self, cluster: str, engines: int) -> None: ...


class Engines(Protocol):
    """What `announce` and `follow` need of a pool."""

    async def engines(self, cluster: str, configured: int, announce: bool = False) -> ClusterSeats: ...


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


async def want_engines(pools: Sequence[Scales], cluster: str, engines: int) -> None:
    """Let a cluster have this number of engines, which are dealt to the pools in turn. Raises ValueError for less than
    one for each pool, and PoolUnavailable if a pool is away; the others have the number then."""
    if engines < len(pools):
        raise ValueError(f"a cluster needs at least {len(pools)} engine(s), one for each pool, not {engines}")
    told = await asyncio.gather(*(pool.scale(cluster, engines) for pool in pools), return_exceptions=True)
    for error in told:
        if error:
            raise error


def scheduler_replicas(pools: Sequence[ClusterSeats]) -> int:
    """The schedulers that a cluster with these seats in its pools needs: one for each engine that it is to have, or has
    until it is removed, and a spare. Two pools may have a seat of the same index, if the list of shards has changed."""
    return max(max(seats.wanted for seats in pools), len({index for seats in pools for index in seats.indices})) + 1


async def announce(pool: Engines, cluster: str, configured: int, pause: float) -> None:
    """Tell the pool the number of a configuration that was just read. While the pool is away, try again after `pause`
    seconds."""
    while True:
        try:
            await pool.engines(cluster, configured, announce=True)
            return
        except PoolUnavailable as error:
            log.warning("waiting for the pool: %s", error)
            await asyncio.sleep(pause)


async def follow(pools: Sequence[Engines], cluster: str, configured: Callable[[], int], period: float) -> None:
    """Let Serve run as many schedulers as the cluster needs, looking every `period` seconds. To be called in a replica
    of their deployment, for which Serve has the number for the `configured` engines. Returns if Serve does not allow
    it: its application has no `external_scaler_enabled`, as with Serve's autoscaling."""
    context = serve.get_replica_context()
    running, told_at, known = configured() + 1, time.monotonic(), LastAnswers[ClusterSeats]()
    while True:
        await asyncio.sleep(period)
        try:
            needed = scheduler_replicas(await known.of(pool.engines(cluster, configured()) for pool in pools))
            if needed != running or time.monotonic() - told_at > REFRESH:
                await asyncio.to_thread(set_replicas, context.app_name, context.deployment, needed)
                running, told_at = needed, time.monotonic()
        except PoolUnavailable as error:
            log.warning("waiting for the pool: %s", error)
        except ExternalScalerDisabledError:
            log.warning("Serve keeps its number of schedulers: set external_scaler_enabled in the application's config")
            return


def set_replicas(application: str, deployment: str, number: int) -> None:
    """Let Serve run this number of replicas of a deployment. It starts or stops some; the others are not touched.

    Raises ExternalScalerDisabledError if the application's config does not allow it, as with Serve's autoscaling.
    """
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    ray.get(controller.update_deployment_replicas.remote(DeploymentID(deployment, application), number))
