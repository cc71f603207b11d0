"""Pinned models, `MODEL@REVISION`: all processes of a server use the same weights for as long as it runs.

The revision is the commit of the hub or, for local files, `ModelInfo.revision`, a hash of the files. The command that
starts a server pins the model and passes the pinned name to its processes. Gateways and schedulers use the name, and
therefore the same pool, whatever happens to the files. Engines read the files and refuse any but the pinned ones.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from services.errors import ModelError, OtherWeights
from services.models.cache import Progress
from services.models.hub import ask_commit, fetched_commit
from services.models.info import ModelInfo
from services.models.resolve import is_local, resolve, split


def pin(model: str, cache_dir: Path, progress: Progress = print) -> str:
    """Return `model` with its current revision. Raises ModelError if it cannot be resolved, or if it is pinned to
    another revision.
    """
    folder = resolve(model, cache_dir, progress)
    name, revision = split(model)
    if not is_local(name):
        return f"{name}@{fetched_commit(name, cache_dir, revision)}"
    found = ModelInfo.load(folder, cache_dir).revision
    if revision not in ("", found):
        raise ModelError(f"{name} has revision {found}, asked for is {revision}")
    return f"{name}@{found}"


def pin_commit(model: str) -> str:
    """Return `model` with the commit of the hub if it is a hub id, without fetching it. Local files are returned as
    they are, and so is every name if the hub does not answer. Raises ModelError if the hub has no such model.
    """
    name, revision = split(model)
    if is_local(name) or name.lower().endswith(".gguf") or Path(name).is_absolute():
        return model
    with contextlib.suppress(ConnectionError):
        return f"{name}@{ask_commit(name, revision)}"
    return model


def pinned_info(model: str, folder: Path, cache_dir: Path) -> ModelInfo:
    """Return the info of the `folder` that `model` resolved to, with its pinned revision. Raises ModelError."""
    name, revision = split(model)
    return ModelInfo.load(folder, cache_dir, revision if is_local(name) else "")


def check_pin(model: str, folder: Path, cache_dir: Path) -> None:
    """Raise OtherWeights if the files that `model` resolved to are not the pinned ones. The files of a hub's commit
    never change.
    """
    name, revision = split(model)
    if not revision or not is_local(name):
        return
    found = ModelInfo.load(folder, cache_dir).revision
    if found != revision:
        raise OtherWeights(
            f"the files of {name} have changed: they are revision {found}, this server was started with {revision}. "
            "Put those back, or start the server again: requests in its pool are not computed with other weights"
        )
