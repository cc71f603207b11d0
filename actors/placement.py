"""Where engine actors live: one named, detached actor for each seat, in a named placement group of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.engine import EngineActor, build_of
from services.config import Settings
from services.errors import EngineLost

NAMESPACE = "orca"
LOAD_TIMEOUT = 900.0  # seconds an engine may take to load its weights

log = logging.getLogger(__name__)


def cluster_id() -> str:
    """A name of this Ray cluster that no other has: the id of its head node."""
    heads = [n["NodeID"] for n in ray.nodes() if "node:__internal_head__" in n["Resources"]]
    assert len(heads) == 1, f"a cluster has one head, found {len(heads)}"
    return str(heads[0])[:12]


def engine_name(index: int) -> str:
    return f"engine-{index}"


def ensure_engine(settings: Settings, index: int) -> ActorHandle[Any]:
    """The engine actor of seat `index`: the one that is there, or a new one, which then loads by itself."""
    actor_class: Any = ray.remote(EngineActor)
    options = _resources(settings)
    actor: ActorHandle[Any] = actor_class.options(
        name=engine_name(index),
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(_ensure_group(index, options)),
        num_cpus=options.get("CPU", 0),
        num_gpus=options.get("GPU", 0),
    ).remote(settings.model_dump(mode="json"))
    return actor


async def attach(settings: Settings, index: int, epoch: str) -> tuple[ActorHandle[Any], bytes]:
    """An engine actor of this very build, serving `epoch` from now on, and its packed figures.

    An actor of another build is replaced. Raises EngineLost when it cannot be reached or does not load in time.
    """
    try:
        actor = ensure_engine(settings, index)
        if await _answer(actor.build.remote()) != build_of(settings):
            log.info("%s is of another build, replacing it", engine_name(index))
            remove_engine(index)
            actor = ensure_engine(settings, index)
        return actor, await _answer(actor.attach.remote(epoch))
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError, ValueError) as error:
        raise EngineLost(f"{engine_name(index)} cannot be attached: {error}") from error


def remove_engine(index: int) -> None:
    """End the engine actor of seat `index` for good and free its place. Only its owner may."""
    try:
        ray.kill(ray.get_actor(engine_name(index), namespace=NAMESPACE), no_restart=True)
    except ValueError:
        log.info("%s was gone already", engine_name(index))
    group = ray.util.get_placement_group(engine_name(index))
    ray.util.remove_placement_group(group)


def _ensure_group(index: int, bundle: dict[str, float]) -> PlacementGroup:
    group: PlacementGroup
    try:
        group = ray.util.get_placement_group(engine_name(index))
    except ValueError:
        group = ray.util.placement_group([bundle], name=engine_name(index), lifetime="detached")
    return group


def _resources(settings: Settings) -> dict[str, float]:
    """One GPU where the device asks for one, or where `auto` finds one in the cluster; else one CPU."""
    if settings.device == "cuda" or (settings.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1):
        return {"CPU": 1, "GPU": 1}
    return {"CPU": 1}


async def _answer(ref: Any) -> Any:
    try:
        return await asyncio.wait_for(ref, LOAD_TIMEOUT)
    except TimeoutError as error:
        raise EngineLost(f"an engine did not answer within {LOAD_TIMEOUT:.0f} s") from error
