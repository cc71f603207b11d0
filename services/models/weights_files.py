"""Which files of a folder are its weights, chosen as transformers does."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from services.errors import ModelError
from services.models.json_file import read_json

INDEX = ".index.json"
# the first of these that a folder has names its weights; an index names the files of its tensors
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

_TEXT_PART = re.compile(r"^(model\.)?(language_model|text_model)\.(model\.)?(?P<head>lm_head\.)?")


def chosen(names: Collection[str]) -> str | None:
    """The one of the files with these names by which transformers finds the weights; None if it finds none."""
    return next((name for name in (*SAFETENSORS, *PICKLES) if name in names), None)


def weights_files(folder: Path) -> list[Path]:
    """The files of the model's weights in `folder`, all of them safetensors or all pickles; empty if there are none.
    Raises ModelError for an index that names files which are absent."""
    name = chosen([file.name for file in folder.iterdir() if file.is_file()])
    if name is None:
        return []
    if not name.endswith(INDEX):
        return [folder / name]
    files = [folder / file for file in sorted(set(weight_map(folder / name).values()))]
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise ModelError(
            f"{folder / name} names {len(files)} files of weights, of which {len(absent)} are absent, such as "
            f"{absent[0]}; copy or download them again"
        )
    return files


def weight_map(index: Path) -> dict[str, str]:
    """The name of the file that has a tensor, by the tensor's name. Raises ModelError for a file that is no index."""
    names = (read_json(index) or {}).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{index} is no index of weights: it has no weight_map from tensors to files")
    return names


def text_tensors(config: Mapping[str, Any], names: Collection[str]) -> Collection[str]:
    """Return which of these tensors the text model of `config` may have: all, unless it is a part of a model that reads
    pictures or sounds too."""
    if config.keys().isdisjoint(("vision_config", "audio_config")):
        return names
    own = [name for name in names if _TEXT_PART.match(name)] or [name for name in names if name.startswith("model.")]
    return [*own, *(name for name in names if name.startswith("lm_head."))] if own else names


def text_name(name: str) -> str:
    """The name of a checkpoint's tensor in the text model alone, which may be a part of another."""
    return _TEXT_PART.sub(lambda found: found["head"] or "model.", name)
