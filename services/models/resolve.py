"""`resolve`: from the value of `--model` to a transformers folder on this machine."""

from __future__ import annotations

from pathlib import Path

from services.errors import ModelError
from services.models.cache import Progress
from services.models.default import fetch_default
from services.models.hub import fetch_from_hub
from services.models.local import from_folder, from_gguf


def split(model: str) -> tuple[str, str]:
    """Return the name of the model and its pinned revision, which is empty if it is not pinned."""
    name, mark, revision = model.rpartition("@")
    return (name, revision) if mark and not Path(model).expanduser().exists() else (model, "")


def is_local(name: str) -> bool:
    """Return whether a name without a revision names files on this machine, not a model of the hub."""
    return name == "default" or Path(name).expanduser().exists()


def resolve(model: str, cache_dir: Path, progress: Progress = print) -> Path:
    """Return a folder with config.json, safetensors, tokenizer.json and, if the model has one, its chat template. The
    name of the folder is that of the model.

    `model` is 'default', a transformers folder, a GGUF file or a hub id, followed by `@` and the revision if it is
    pinned (see `pin`). A model is fetched or converted once and kept in `cache_dir`; several processes may call this at
    the same time. `progress` gets a line for each long step. Raises ModelError, which says what is missing and why.
    """
    model, revision = split(model)
    if model == "default":
        return fetch_default(cache_dir, progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return from_folder(path, cache_dir, progress)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{model} is a file but not a .gguf one; a transformers model is named by its folder")
        return from_gguf(path, cache_dir, progress)
    if path.suffix.lower() == ".gguf" or path.is_absolute() or model.startswith((".", "~")):
        raise ModelError(f"there is no file or folder {path}")
    return fetch_from_hub(model, cache_dir, progress, revision)
