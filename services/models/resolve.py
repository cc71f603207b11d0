"""`resolve`: what `--model` names becomes a transformers folder on this machine."""

from __future__ import annotations

from pathlib import Path

from services.errors import ModelError
from services.models.cache import Progress
from services.models.default import fetch_default
from services.models.hub import fetch_from_hub
from services.models.local import from_folder, from_gguf


def split(model: str) -> tuple[str, str]:
    """What is named, and the revision it is pinned to, empty where it is not."""
    name, mark, revision = model.rpartition("@")
    return (name, revision) if mark and not Path(model).expanduser().exists() else (model, "")


def is_local(name: str) -> bool:
    """Whether a name without a revision is that of files on this machine, not of the hub's."""
    return name == "default" or Path(name).expanduser().exists()


def resolve(model: str, cache_dir: Path, progress: Progress = print) -> Path:
    """A folder with config.json, safetensors, tokenizer.json and, where the model has one, its chat template.

    `model` is 'default', a transformers folder, a GGUF file or a hub id, `@` and a revision after it where that is
    pinned (see `pin`). What must be fetched or converted is done once
    and kept in `cache_dir`; several processes may call at once. The folder's name is the model's. `progress` gets a
    line per long step. Raises ModelError saying what was looked for and why it cannot be had.
    """
    model, revision = split(model)
    if model == "default":
        return fetch_default(cache_dir, progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return from_folder(path, cache_dir, progress)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{model} is a file but not a .gguf one; a transformers model is named by its folder")
        return from_gguf(path, cache_dir, progress)
    if path.suffix == ".gguf" or path.is_absolute() or model.startswith((".", "~")):
        raise ModelError(f"there is no file or folder {path}")
    return fetch_from_hub(model, cache_dir, progress, revision)
