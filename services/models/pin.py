"""One choice of weights for all processes of a server and for its whole life: `MODEL@REVISION`.

The revision is the hub's commit, or of files on this machine `ModelInfo.revision`, a hash of them. The command that
starts a server pins; its processes are told the pinned name. Gateways and schedulers go by it, so all use one pool,
whatever happens to the files; engines read the files, and refuse others than those that were pinned.
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
    """`model` with the revision that it has now. Raises ModelError where it cannot be had, or has another revision
    than it is pinned to."""
    folder = resolve(model, cache_dir, progress)
    name, revision = split(model)
    if not is_local(name):
        return f"{name}@{fetched_commit(name, cache_dir, revision)}"
    found = ModelInfo.load(folder, cache_dir).revision
    if revision not in ("", found):
        raise ModelError(f"{name} has revision {found}, asked for is {revision}")
    return f"{name}@{found}"


def pin_commit(model: str) -> str:
    """`model` with the hub's commit where it is a hub id, of which nothing is fetched; files, and all where the hub
    does not answer, as they are named. Raises ModelError where the hub has none."""
    name, revision = split(model)
    if is_local(name) or name.endswith(".gguf") or Path(name).is_absolute():
        return model
    with contextlib.suppress(ConnectionError):
        return f"{name}@{ask_commit(name, revision)}"
    return model


def pinned_info(model: str, folder: Path, cache_dir: Path) -> ModelInfo:
    """Of what `model` resolved to, under the revision it is pinned to. Raises ModelError."""
    name, revision = split(model)
    return ModelInfo.load(folder, cache_dir, revision if is_local(name) else "")


def check_pin(model: str, folder: Path, cache_dir: Path) -> None:
    """Raises OtherWeights where the files that `model` resolved to are not those it is pinned to. A hub's commit does
    not change."""
    name, revision = split(model)
    if not revision or not is_local(name):
        return
    found = ModelInfo.load(folder, cache_dir).revision
    if found != revision:
        raise OtherWeights(
            f"the files of {name} have changed: they are revision {found}, this server was started with {revision}. "
            "Put those back, or start the server again: requests in its pool are not computed with other weights"
        )
