"""What the parts of a run share: an engine with random weights, the rates of its machine, and the time left."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from load.bench.engine.floor import ModelShape
from load.bench.engine.phases import Subject
from load.bench.engine.rates import MachineRates, measure_rates
from load.bench.engine.timing import Scale
from load.bench.gpu.configurations import Configuration
from load.trace import Request
from load.workloads import paper_lengths
from services.engine.engine import Engine
from services.engine.families.tensors import RandomTensors
from services.engine.settings import EngineSettings
from services.engine.startup import devices


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

    def share(self, parts: int) -> float:
        """The seconds that each of `parts` parts may take of what is left."""
        assert parts > 0, f"{parts = }"
        return self.left / parts


CUDA_KV = 0.85  # share of the memory that weights leave; the rest is for activations and logits
CUT = "The time is spent: what is missing was not measured."


@dataclass(frozen=True, slots=True)
class GpuScale(Scale):
    """How much is measured on a GPU. The defaults are what the docs describe; tests measure less."""

    output: int = 32  # tokens out in section 6.1
    lengths: Callable[[int], list[Request]] = paper_lengths  # the trace of section 6.2
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.85, 1.0)  # shares of the most that a configuration serves
    least: int = 12  # requests of a trace
    longest: float = 12.0  # seconds of arrivals
    levels: tuple[int, ...] = (1, 16)  # latencies of twice the engine alone with these batches, like the paper's level
    continuous_tokens: int = 4096  # of an iteration of transformers' continuous batching


FULL = GpuScale()


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a part found: markdown for people, plain lists and dicts for programs."""

    text: str
    data: Any


class Bench:
    """The engine, which is loaded when it is first used; `release` gives its memory back to a part that needs it."""

    def __init__(
        self,
        name: str,
        configuration: Configuration,
        settings: EngineSettings,
        budget: Budget,
        plots: Path | None,
        scale: GpuScale = FULL,
    ) -> None:
        self.name = name
        self.scale = scale
        self.configuration = configuration
        self.budget = budget
        self.plots = plots
        self.config = configuration.config()
        self.device = devices.choose_device(settings)
        self.dtype = devices.choose_dtype(settings, self.device)
        self.tensors = RandomTensors(self.config, self.dtype, self.device)
        self._settings = replace(settings, kv_memory_fraction=CUDA_KV) if self.device.type == "cuda" else settings
        self._engine: Engine | None = None
        self._shape: ModelShape | None = None
        self._rates: MachineRates | None = None

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            _ = self.rates  # need memory that the engine would take
            self.release()  # memory that other parts had counts as free only then
            with tempfile.TemporaryDirectory() as parent:
                folder = Path(parent) / self.name
                self.config.save_pretrained(folder)
                self._engine = Engine.load(folder, self._settings, tensors=self.tensors)
        return self._engine

    @property
    def loaded(self) -> str:
        """The numerics of the engine and how many tokens it keeps; empty while there is none."""
        if self._engine is None:
            return ""
        figures = self._engine.figures
        return f"{figures.numerics}; keys and values of {figures.num_blocks * figures.block_size:,} tokens"

    @property
    def shape(self) -> ModelShape:
        if self._shape is None:
            self._shape = ModelShape.of(self.config, self.dtype.itemsize, self.dtype)
        return self._shape

    @property
    def rates(self) -> MachineRates:
        """The rates of this machine for the widest product of this model, measured once in a run, before the engine
        takes the memory."""
        if self._rates is None:
            assert self._engine is None, "the engine leaves no memory to measure with"
            self._rates = measure_rates(self.device, self.dtype, *self.shape.widest, self.shape.stored, self.scale)
            self.release()
        return self._rates

    @property
    def subject(self) -> Subject:
        return Subject(self.engine, self.shape, self.rates, self.scale)

    def release(self) -> None:
        """Free all memory that is not in use; the engine's too, unless something else refers to it."""
        self._engine = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
