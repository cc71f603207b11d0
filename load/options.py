"""What every part of the benchmark is told, and the engine it names."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.config import Settings
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.models import resolve


@dataclass(frozen=True, slots=True)
class Options:
    """`model` as in `orca serve --model`; `cache_dir` None is the setting's default."""

    model: str = "default"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    cache_dir: Path | None = None


def load_engine(options: Options) -> Engine:
    """The real engine, in this process; what takes long is told on stderr."""
    cache = options.cache_dir or Settings.model_fields["cache_dir"].default
    folder = resolve(options.model, cache, lambda line: print(line, file=sys.stderr, flush=True))
    return Engine.load(folder, EngineSettings(device=options.device, dtype=options.dtype))
