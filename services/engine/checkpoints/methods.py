"""The quantization methods that are served, and the reasons for the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.engine.checkpoints.compressed import compressed_tensors
from services.engine.checkpoints.floats import fp8, mxfp4
from services.engine.checkpoints.format import Config, Format
from services.engine.checkpoints.words import awq, gptq
from services.errors import ModelError

# by `quant_method`
METHODS: dict[str, Callable[[Config], Format]] = {
    "gptq": gptq,
    "awq": awq,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "compressed-tensors": compressed_tensors,
    "mxfp4": mxfp4,
}


def config_of(folder: Path) -> Config | None:
    """The `quantization_config` of the model in `folder`; None if its tensors are numbers."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None  # whoever reads the config reports it
    text = config.get("text_config") or {}
    found = [each.get(name) for each in (config, text) for name in ("quantization_config", "compression_config")]
    return next((each for each in found if each), None)


def format_of(folder: Path) -> Format | None:
    """How the model in `folder` stores weights that are no numbers; None if it has none. Raises ModelError for a method
    that is not served."""
    config = config_of(folder)
    if config is None:
        return None
    method = _method(config)
    if method not in METHODS:
        served = ", ".join(METHODS)
        raise ModelError(f"{folder.name} is quantized with {method}, which is not served; these are: {served}")
    try:
        return METHODS[method]({**config, "quant_method": method})
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder.name}: its quantization_config cannot be read: {error!r}") from error


def _method(config: Mapping[str, Any]) -> str:
    if "quant_method" in config:
        return str(config["quant_method"])
    bits = (name for name in ("load_in_4bit", "load_in_8bit") if config.get(name))
    return "bitsandbytes" if any(bits) else "a method that quantization_config does not name"
