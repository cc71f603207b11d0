"""Whether the installed transformers knows the type of a model, without importing it, which takes seconds."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path

from services.errors import ModelError
from services.models.info import read_json

LISTS = ("auto_mappings.py", "configuration_auto.py")  # of transformers.models.auto, with the names of all types


def check_model_type(folder: Path) -> None:
    """Raises ModelError if the config.json in `folder` names no `model_type`, or one that transformers does not know.
    A type whose name stands elsewhere in the lists passes; then `load_config` refuses it."""
    config = read_json(folder / "config.json") or {}
    if "model_type" not in config:
        raise ModelError(f"{folder / 'config.json'} has no model_type")
    known = _lists()
    if known and f'"{config["model_type"]}"' not in known:
        kind, installed = config["model_type"], version("transformers")
        raise ModelError(f"{folder} has model_type {kind!r}, which transformers {installed} does not know")


def _lists() -> str:
    """The sources of the lists; empty if another version of transformers has them elsewhere."""
    spec = importlib.util.find_spec("transformers")
    places = spec.submodule_search_locations if spec else None
    files = [Path(place) / "models" / "auto" / name for place in places or () for name in LISTS]
    return "".join(file.read_text(encoding="utf-8") for file in files) if all(map(Path.is_file, files)) else ""
