"""What the parts of a run share: an engine, the rates of its machine, what is measured of it, and the time left."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from load.bench.floor import ModelShape
from load.bench.rates import MachineRates, measure_rates
from load.bench.shapes import DEFAULT_PLAN, FORMATS, SHAPES
from load.bench.timing import FULL, Scale
from load.options import Options, load_as_served, model_folder, release_memory
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.startup import devices
from services.engine.weights.random_tensors import RandomTensors

CUT = "The time is spent: what is missing was not measured."


class Budget:
    """The seconds that a run may take, from the creation of this object on. `clock` is in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; 0 once the budget is spent."""
        return max(0.0, self._end - self._clock())

    @property
    def spent(self) -> bool:
        return self.left == 0.0


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a part found: markdown for people, plain lists and dicts for programs."""

    text: str
    data: Any


class Bench:
    """The engine, which is loaded when it is first used; `release` gives its memory back to a part that needs it.

    `settings`: further ones of the engine.
    """

    def __init__(
        self,
        options: Options,
        budget: Budget,
        scale: Scale = FULL,
        **settings: Any,
    ) -> None:
        shape, form = options.shape, options.format
        self.scale, self.plan, self.budget = scale, SHAPES[shape] if shape else DEFAULT_PLAN, budget
        self.options = options
        self.settings = replace(options.settings, max_model_len=self.plan.max_model_len, **settings)
        self.device = devices.choose_device(self.settings)
        self.dtype = devices.choose_dtype(self.settings, self.device)
        if self._on_cuda:
            devices.forbid_shortcuts()  # before anything is multiplied
        self._form = FORMATS.get(form)
        self.folder = None if shape and (self._form or not form) else model_folder(options)
        self.name = "-".join(filter(None, (shape, form))) or (self.folder.name if self.folder else "")
        self._engine: Engine | None = None

    @property
    def _on_cuda(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def config(self) -> Any:
        """transformers' config."""
        return load_config(self.folder) if self.folder else self.plan.config()

    @property
    def lookahead(self) -> int:
        """That of a server on this device, unless it is told otherwise."""
        return int(self._on_cuda)

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self._on_cuda else "cpu"

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            if self._on_cuda:
                _ = self.rates  # need memory that the engine would take
                self.release()  # memory that other parts had counts as free only then
            self._engine = load_as_served(self.folder, self.settings) if self.folder else self._load_random()
        return self._engine

    def _load_random(self) -> Engine:
        tensors = RandomTensors(self.config, self.dtype, self.device)
        if self._form:
            tensors.groups = dict.fromkeys((name for name in tensors.names if "norm" not in name), self._form)
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / self.name
            self.config.save_pretrained(folder)
            return Engine.load(folder, self.settings, tensors=tensors)

    @property
    def loaded(self) -> str:
        """The numerics of the engine and how many tokens it keeps; empty while there is none."""
        if self._engine is None:
            return ""
        figures = self._engine.figures
        return f"{figures.numerics}; keys and values of {figures.num_blocks * figures.block_size:,} tokens"

    @cached_property
    def shape(self) -> ModelShape:
        """The shape as the engine keeps weights; on CUDA, where there may be no engine yet, as its dtype has them."""
        if self._on_cuda:
            return ModelShape.of(self.config, self.dtype.itemsize, self.dtype)
        decoder = self.engine.decoder
        return ModelShape.of(self.config, decoder.weight_bytes, decoder.cache_dtype)

    @cached_property
    def rates(self) -> MachineRates:
        """The rates of this machine for the widest product of this model, measured once in a run; on CUDA before the
        engine takes the memory."""
        assert not (self._on_cuda and self._engine), "the engine leaves no memory to measure with"
        shape = self.shape
        stored = self.dtype if self._on_cuda else self.engine.decoder.weight_dtype
        return measure_rates(self.device, stored, *shape.widest, shape.stored, self.scale)

    def context(self, tokens: int) -> int:
        """So many tokens, or less where the model takes less: whole blocks, with room for the generated tokens."""
        figures = self.engine.figures
        return min(tokens, (figures.max_model_len - self.scale.steps) // figures.block_size * figures.block_size)

    def release(self) -> None:
        """Free all memory that is not in use; the engine's too, unless something else refers to it."""
        self._engine = None
        release_memory()
