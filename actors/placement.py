"""Where engine actors live: two named, detached actors for each seat, sharing a named placement group of its own."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.engine import EngineActor
from services.config import Settings

NAMESPACE = "orca"

log = logging.getLogger(__name__)


def cluster_id() -> str:
    """A name of this Ray cluster that no other has: the id of its head node."""
    heads = [n["NodeID"] for n in ray.nodes() if "node:__internal_head__" in n["Resources"]]
    assert len(heads) == 1, f"a cluster has one head, found {len(heads)}"
    return str(heads[0])[:12]


def engine_names(index: int) -> tuple[str, str]:
    """Of the two actors of seat `index`. Which of them has the weights changes."""
    return f"{_group_name(index)}-a", f"{_group_name(index)}-b"


def find_engine(name: str) -> ActorHandle[Any] | None:
    """The actor of that name, if there is one; it may be starting again just now."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def ensure_engine(settings: Settings, index: int, which: int = 0) -> ActorHandle[Any]:
    """One of the two engine actors of seat `index`: the one that is there, or a new one, which imports all it needs.

    The two share the resources of one engine: only one of them has weights at a time.
    """
    remote: Any = ray.remote  # its types know no concurrency groups
    bundle = _resources(settings)
    actor: ActorHandle[Any] = (
        remote(concurrency_groups={"control": 1})(EngineActor)
        .options(
            name=engine_names(index)[which],
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(_ensure_group(index, bundle)),
            num_cpus=bundle["CPU"] / 2,
            num_gpus=bundle.get("GPU", 0) / 2,
        )
        .remote(settings.model_dump(mode="json"))
    )
    return actor


def remove_engine(index: int) -> None:
    """End both engine actors of seat `index` for good and free their place. Only its owner may."""
    for name in engine_names(index):
        if actor := find_engine(name):
            ray.kill(actor, no_restart=True)
    with contextlib.suppress(ValueError):  # there is none
        ray.util.remove_placement_group(ray.util.get_placement_group(_group_name(index)))


def _group_name(index: int) -> str:
    return f"engine-{index}"


def _ensure_group(index: int, bundle: dict[str, float]) -> PlacementGroup:
    group: PlacementGroup
    try:
        group = ray.util.get_placement_group(_group_name(index))
    except ValueError:
        group = ray.util.placement_group([bundle], name=_group_name(index), lifetime="detached")
    return group


def _resources(settings: Settings) -> dict[str, float]:
    """One GPU where the device asks for one, or where `auto` finds one in the cluster; else one CPU."""
    if settings.device == "cuda" or (settings.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1):
        return {"CPU": 1, "GPU": 1}
    return {"CPU": 1}
