"""The model and the engine that the programs run on."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from load.arguments import option
from load.bench.shapes import FORMATS, SHAPES
from load.random_model import GGUF, save_random_gguf, save_random_model
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup.devices import choose_device, choose_dtype
from services.engine.startup.shared_memory import SharedMemory
from services.files import user_cache
from services.models import resolve
from services.models.cache import cached, place

CACHE = user_cache()


@dataclass(frozen=True, slots=True)
class Options:
    """What a program runs on. `model` is as in `orca serve --model`."""

    model: str = option("default", "a transformers folder, a GGUF file or a hub id")
    shape: str = option("", "random weights in this shape, in place of --model", choices=SHAPES)
    format: str = option("", "in which the random weights of --shape are stored", choices=(*GGUF, *FORMATS))
    cache_dir: Path = option(CACHE, "where converted models are kept", type=Path)
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto, cpu or cuda", choices=["auto", "cpu", "cuda"])
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "of weights and activations", choices=["auto", "float32", "bfloat16", "float16"]
    )

    @property
    def settings(self) -> EngineSettings:
        return EngineSettings(self.device, self.dtype, cache_dir=self.cache_dir)

    @property
    def weights_dtype(self) -> str:
        """The dtype of the engine's weights by torch's name: "bfloat16"."""
        return str(choose_dtype(self.settings, choose_device(self.settings))).removeprefix("torch.")


def served(options: Options) -> str:
    """The model as `orca serve` takes it. Random weights are written once and kept, as a converted model is; those in
    a format of `FORMATS` are only made in an engine."""
    assert options.format not in FORMATS, options.format
    if not options.shape:
        return options.model
    config, device, form = SHAPES[options.shape].config(), choose_device(options.settings), options.format
    identity = f"random {form or options.weights_dtype} {config.to_json_string()}"

    def write(target: Path, _: Path) -> None:
        if form:
            target.mkdir()
            save_random_gguf(target / f"{name}.gguf", config, form)
        else:
            save_random_model(target, config, choose_dtype(options.settings, device), device)

    name = "-".join(filter(None, (options.shape, form)))
    folder = cached(place(options.cache_dir, identity, name), write, _report)
    return str(folder / f"{name}.gguf" if form else folder)


def model_folder(options: Options) -> Path:
    """The model as a local folder; downloads and conversions are reported on stderr."""
    return resolve(served(options), options.cache_dir, _report)


def release_memory() -> None:
    """Give back all memory that is not in use, a GPU's too."""
    gc.collect()
    torch.cuda.empty_cache()


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load_as_served(folder: Path, settings: EngineSettings) -> Engine:
    """The engine of the model in `folder`, with weights and KV cache in the same kind of memory as a served one."""
    memory = SharedMemory()
    try:
        return Engine.load(folder, settings, memory=memory)
    finally:
        memory.release()
