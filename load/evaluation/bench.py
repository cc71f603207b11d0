"""What the parts of an evaluation share: the model, an engine in this process, a server, and how long they measure."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_engine
from load.plots import Bars, Panel
from load.report import Figures
from load.server import READY, OrcaServer, until
from load.workloads import single
from services.scheduling import Knobs

Plots = dict[str, list[Panel | Bars]]  # the panels of each file by its name, without ".png"


@dataclass(frozen=True, slots=True)
class Found:
    """What a part measured. `figures` are its tables; `series` is what only its plots need, as JSON."""

    figures: Figures
    series: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peers:
    """Other servers that are measured if they are named: an interpreter that has vLLM; llama.cpp's server, and the
    GGUF file that it serves."""

    vllm_python: Path | None = None
    llama_server: Path | None = None
    gguf: Path | None = None


class Bench:
    """The model that is evaluated. `seconds`: how long arrivals last at each rate; other lengths follow from it.

    `release` ends the engine, so that what a server is asked next has the machine for itself.
    """

    def __init__(self, options: Options, seconds: float, peers: Peers = Peers(), engine: Engine | None = None) -> None:
        self.options, self.seconds, self.peers = options, seconds, peers
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The engine in this process, which is loaded and warmed up when it is first used."""
        if self._engine is None:
            self._engine = load_engine(self.options)
            run_in_process(self._engine, single(), Setup(Knobs(1)))
        return self._engine

    def release(self) -> None:
        self._engine = None
        gc.collect()

    @contextmanager
    def server(self, *flags: str, spares: bool = True) -> Iterator[OrcaServer]:
        """`orca serve` on the model with these flags, ready; with `spares` it starts nothing more."""
        self.release()
        model = ["--model", self.options.model, "--device", self.options.device, "--dtype", self.options.dtype]
        with TemporaryDirectory() as folder, OrcaServer(Path(folder), *model, *flags) as server:
            if spares:
                asyncio.run(until(server.has_spares, READY))
            yield server
