"""What every part of the benchmark is told, and the model and engine it names."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.files import user_cache
from services.models import resolve


@dataclass(frozen=True, slots=True)
class Options:
    """`model` as in `orca serve --model`."""

    model: str = "default"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    cache_dir: Path = field(default_factory=user_cache)
    weights: Literal["dtype", "int8"] = "dtype"
    lean: bool = True  # False: transformers' own layers


def model_folder(options: Options) -> Path:
    """The model as a folder of this machine; what takes long is told on stderr."""
    return resolve(
        options.model,
        options.cache_dir,
        lambda line: print(line, file=sys.stderr, flush=True),
    )


def load_engine(options: Options) -> Engine:
    """The real engine, in this process."""
    return Engine.load(model_folder(options), engine_settings(options))


def engine_settings(options: Options) -> EngineSettings:
    return EngineSettings(
        options.device, options.dtype, options.weights, lean=options.lean, cache_dir=options.cache_dir
    )


def load_exact_engine(options: Options) -> Engine:
    """The real engine in float32, where tokens are the same however they are computed, unless a dtype is asked for."""
    return load_engine(replace(options, dtype="float32") if options.dtype == "auto" else options)
