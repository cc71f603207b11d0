"""Bench: what the parts of a run share: an engine with random weights, the rates of its machine, the time left."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from load.bench.engine.machine_rates import MachineRates, measure_rates
from load.bench.engine.model_shape import ModelShape
from load.bench.engine.phases import Subject
from load.bench.gpu.budget import Budget
from load.bench.gpu.configurations import Configuration
from services.engine import placement
from services.engine.engine import Engine
from services.engine.random_tensors import RandomTensors
from services.engine.settings import EngineSettings

CUDA_KV = 0.85  # of the memory that weights leave; the rest is for activations and logits


@dataclass(frozen=True, slots=True)
class Found:
    """What a part found: markdown for people, plain lists and dicts for programs."""

    text: str
    data: Any


class Bench:
    """Loads the engine when it is first asked for; whoever needs its memory gives it back by `release`."""

    def __init__(
        self, name: str, configuration: Configuration, settings: EngineSettings, budget: Budget, plots: Path | None
    ) -> None:
        self.name = name
        self.configuration = configuration
        self.budget = budget
        self.plots = plots
        self.config = configuration.config()
        self.device = placement.choose_device(settings)
        self.dtype = placement.choose_dtype(settings, self.device)
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
            self.release()  # what others had before is counted as free only then
            with tempfile.TemporaryDirectory() as parent:
                folder = Path(parent) / self.name
                self.config.save_pretrained(folder)
                self._engine = Engine.load(folder, self._settings, tensors=self.tensors)
        return self._engine

    @property
    def shape(self) -> ModelShape:
        if self._shape is None:
            decoder = self.engine.decoder
            self._shape = ModelShape.of(self.config, decoder.weight_dtype, decoder.cache_dtype)
        return self._shape

    @property
    def rates(self) -> MachineRates:
        """Of this machine, for the widest product of this model, measured once in a run."""
        if self._rates is None:
            self._rates = measure_rates(self.device, self.engine.decoder.weight_dtype, *self.shape.widest)
        return self._rates

    @property
    def subject(self) -> Subject:
        return Subject(self.engine, self.shape, self.rates)

    def release(self) -> None:
        """Give back all memory that nobody uses; the engine's is, if nobody else holds it."""
        self._engine = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
