"""The config of a model as transformers reads it. Models with features that are not served are refused here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from services.errors import ModelError

# these rotary embeddings depend on the longest position of the whole batch, so tokens would depend on the batch
BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def load_config(folder: Path) -> Any:
    """The config of the text model in `folder`. Raises ModelError if it has a feature that is not served."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} holds no model that transformers can read: {error}") from error
    _check(config)
    return config


def _check(config: Any) -> None:
    """Raises ModelError naming a feature in the model's text config that is not served."""
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        raise ModelError(f"{config.model_type}: layers of type {', '.join(kinds)} are not served")
    for rope in _rope_types(getattr(config, "rope_parameters", None)):
        if rope in BATCH_DEPENDENT_ROPE:
            raise ModelError(f"{config.model_type}: rope type {rope!r} is not served, it depends on the batch")


def _rope_types(parameters: Any) -> Iterator[str]:
    """The rope types in a config's `rope_parameters`: one dict, or one for each type of layer."""
    if isinstance(parameters, dict):
        if "rope_type" in parameters:
            yield str(parameters["rope_type"])
        for value in parameters.values():
            yield from _rope_types(value)
