"""The quantization methods that are served, and the reasons for the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.engine.checkpoints.bitsandbytes import bitsandbytes
from services.engine.checkpoints.compressed import compressed_tensors
from services.engine.checkpoints.floats import fp8
from services.engine.checkpoints.format import Config, Format
from services.engine.checkpoints.fp4 import mxfp4
from services.engine.checkpoints.modelopt import modelopt
from services.engine.checkpoints.words import awq, gptq
from services.errors import ModelError
from services.models.quantization import config_of, method_of

# by `quant_method`
METHODS: dict[str, Callable[[Config], Format]] = {
    "gptq": gptq,
    "awq": awq,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "compressed-tensors": compressed_tensors,
    "mxfp4": mxfp4,
    "modelopt": modelopt,
    "bitsandbytes": bitsandbytes,
}


def format_of(folder: Path) -> Format | None:
    """How the model in `folder` stores weights that are no numbers; None if it has none. Raises ModelError for a method
    that is not served."""
    config = config_of(folder)
    if config is None:
        return None
    method = method_of(config)
    if method not in METHODS:
        served = ", ".join(METHODS)
        raise ModelError(f"{folder.name} is quantized with {method}, which is not served; these are: {served}")
    try:
        return METHODS[method]({**config, "quant_method": method})
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder.name}: its quantization_config cannot be read: {error!r}") from error
