"""The model and the engine that the programs run on."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from load.arguments import option
from load.bench.shapes import SHAPES
from load.random_model import save_random_model
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


def model_folder(options: Options) -> Path:
    """The model as a local folder; downloads and conversions are reported on stderr. Random weights are written once
    and kept, as a converted model is."""
    if not options.shape:
        return resolve(options.model, options.cache_dir, _report)
    config, device = SHAPES[options.shape].config(), choose_device(options.settings)
    identity = f"random {options.weights_dtype} {config.to_json_string()}"

    def write(target: Path, _: Path) -> None:
        save_random_model(target, config, choose_dtype(options.settings, device), device)

    return cached(place(options.cache_dir, identity, options.shape), write, _report)


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
