"""The options of the benchmarks, the model and engine that they name, and the command line of a program with parts."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup.devices import choose_device, choose_dtype
from services.engine.startup.shared_memory import SharedMemory
from services.files import user_cache
from services.models import resolve

KVCacheDtype = Literal["auto", "float32", "bfloat16", "int8_per_token_head"]
KV_CACHE_DTYPES: tuple[KVCacheDtype, ...] = get_args(KVCacheDtype)


@dataclass(frozen=True, slots=True)
class Options:
    """What a benchmark runs on. `model` is as in `orca serve --model`."""

    model: str = "default"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    cache_dir: Path = field(default_factory=user_cache)
    weights: Literal["auto", "dtype", "int8"] = "auto"
    fast_path: bool = True  # False: transformers' own layers
    kv_cache_dtype: KVCacheDtype = "auto"


def model_folder(options: Options) -> Path:
    """The model as a local folder; downloads and conversions are reported on stderr."""
    return resolve(
        options.model,
        options.cache_dir,
        lambda line: print(line, file=sys.stderr, flush=True),
    )


def load_engine(options: Options) -> Engine:
    """The engine with its model, in this process."""
    return load_as_served(model_folder(options), engine_settings(options))


def load_as_served(folder: Path, settings: EngineSettings) -> Engine:
    """The engine of the model in `folder`, with weights and KV cache in the same kind of memory as a served one."""
    memory = SharedMemory()
    try:
        return Engine.load(folder, settings, memory=memory)
    finally:
        memory.release()


def engine_settings(options: Options) -> EngineSettings:
    return EngineSettings(
        options.device,
        options.dtype,
        options.weights,
        options.kv_cache_dtype,
        options.fast_path,
        cache_dir=options.cache_dir,
    )


def dtype_of(options: Options) -> str:
    """The dtype of the engine's weights by torch's name: "bfloat16"."""
    settings = engine_settings(options)
    return str(choose_dtype(settings, choose_device(settings))).removeprefix("torch.")


def add_model(parser: ArgumentParser) -> None:
    """The arguments that name a model and the folder of converted models."""
    parser.add_argument("--model", default="default", help="a transformers folder, a GGUF file, a hub id or 'default'")
    parser.add_argument("--cache-dir", type=Path, default=user_cache(), help="where converted models are kept")


def add_numerics(parser: ArgumentParser) -> None:
    """The arguments that choose device and dtype."""
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])


def parser(program: str, description: str, parts: Mapping[str, str]) -> ArgumentParser:
    """The parser of `python -m program`. `parts`: the description of each part by its name. The argument `part` has the
    names that were given; None: all."""
    made = ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {name:14}{about}" for name, about in parts.items()),
    )
    made.add_argument("--part", action="append", choices=list(parts), help="run only this part; may be repeated")
    return made
