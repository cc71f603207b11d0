"""Where engine actors live: two named, detached actors for each rank, in a placement group named after the seat."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.engine import EngineActor
from actors.engine_build import layout_of
from actors.engine_record import forget
from services.errors import SettingsError
from services.settings.settings import Settings

NAMESPACE = "orca"
ADDED = 64  # ranks of models that an operator may add

_group_lock = threading.Lock()  # the ranks of a seat are created from several threads

_ENGINE = re.compile(r"engine-((?:m[0-9a-f]{6}\.)?\d+)-\d+-[ab]")  # the name of an engine actor

log = logging.getLogger(__name__)


def cluster_id() -> str:
    """A unique name of this Ray cluster, a digest of its session's. Ray's GCS keeps it: with GCS fault tolerance it
    stays the same when the head is replaced, as the engines do."""
    return hashlib.sha256(ray.get_runtime_context().get_session_name().encode()).hexdigest()[:12]


def engine_label(index: int, tag: str = "") -> str:
    """The name of the engine of seat `index` among those of all models: `2`, or `m3fa9c1.2` for a model with a tag."""
    return f"m{tag}.{index}" if tag else str(index)


def engine_names(engine: str, rank: int = 0) -> tuple[str, str]:
    """The names of the two actors of a rank of the engine with this label. Either can have the weights."""
    name = f"{_group_name(engine)}-{rank}"
    return f"{name}-a", f"{name}-b"


def find_engine(name: str) -> ActorHandle[Any] | None:
    """The actor of that name, or None if there is none. Its process may just be restarting."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def ensure_engine(settings: Settings, index: int, rank: int = 0, which: int = 0) -> ActorHandle[Any]:
    """Return one of the two engine actors of a rank of seat `index`; create it if it does not exist.

    The two share a bundle, the resources of one rank, since only one of them has weights at a time.
    """
    remote: Any = ray.remote  # its type annotations lack concurrency groups
    engine = engine_label(index, settings.tag)
    names = engine_names(engine, rank)
    bundle = _resources(settings)
    actor: ActorHandle[Any] = (
        remote(concurrency_groups={"control": 1})(EngineActor)
        .options(
            name=names[which],
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(_ensure_group(settings, engine), rank),
            num_cpus=bundle["CPU"] / 2,
            num_gpus=bundle.get("GPU", 0) / 2,
        )
        .remote(settings.without_secrets(), rank, names[1 - which])
    )
    return actor


def engine_actors() -> dict[str, ActorHandle[Any]]:
    """All engine actors of this cluster, by name. Their processes may just be restarting."""
    named = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in named if each["namespace"] == NAMESPACE and _ENGINE.fullmatch(each["name"])]
    return {name: actor for name in names if (actor := find_engine(name))}


def label_of(actor: str) -> str:
    """The label of the engine of the actor of this name."""
    found = _ENGINE.fullmatch(actor)
    assert found, actor
    return found[1]


def tag_of_label(engine: str) -> str:
    """The tag of the model of the engine with this label."""
    return engine.rpartition(".")[0].removeprefix("m")


def engine_labels() -> list[str]:
    """The labels of the engines of this cluster that have actors."""
    return sorted({label_of(name) for name in engine_actors()})


def remove_engine(engine: str) -> None:
    """End all actors of the engine with this label for good, whatever their layout, and free their resources. Only the
    owner of its seat may call this."""
    forget(f"{_group_name(engine)}-")
    for named in ray.util.list_named_actors(all_namespaces=True):
        ours = named["namespace"] == NAMESPACE and named["name"].startswith(f"{_group_name(engine)}-")
        if ours and (actor := find_engine(named["name"])):
            ray.kill(actor, no_restart=True)
    with contextlib.suppress(ValueError):  # there is no group
        ray.util.remove_placement_group(ray.util.get_placement_group(_group_name(engine)))


def check_gpus(settings: Settings, there: int) -> None:
    """Raises SettingsError if engines would wait for ever for more GPUs than the machine has (`there`)."""
    if settings.device == "cuda" and not there:
        raise SettingsError("device=cuda: this machine has no CUDA device; use device=cpu or auto")
    on_gpus = [each for each in settings.each if each.device != "cpu"]
    needed = sum(each.engines * layout_of(each).size for each in on_gpus)
    if 0 < there < needed:
        asked = "; ".join(f"engines={each.engines}, tp={each.tp}, pp={each.pp}" for each in on_gpus)
        raise SettingsError(f"{asked}: each rank has a GPU, {needed} are needed, this machine has {there}")


def _group_name(engine: str) -> str:
    return f"engine-{engine}"


def _ensure_group(settings: Settings, engine: str) -> PlacementGroup:
    group: PlacementGroup
    with _group_lock:
        try:
            group = ray.util.get_placement_group(_group_name(engine))
        except ValueError:
            bundles = [_resources(settings)] * layout_of(settings).size
            # one node, since ranks exchange activations in each layer
            group = ray.util.placement_group(bundles, "STRICT_PACK", name=_group_name(engine), lifetime="detached")
    return group


def _resources(settings: Settings) -> dict[str, float]:
    """The resources of a rank: one CPU, and one GPU if the device is `cuda`, or `auto` and the cluster has a GPU."""
    if settings.device == "cuda" or (settings.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1):
        return {"CPU": 1, "GPU": 1}
    return {"CPU": 1}
