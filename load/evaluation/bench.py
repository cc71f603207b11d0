"""What the parts of an evaluation share: the model, an engine in this process, a server, and how long they measure."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from load.arguments import option
from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_as_served, model_folder, release_memory, served
from load.over_http import run_over_http
from load.plots import Panel
from load.processes import busy_seconds, by_kind
from load.report import Figures
from load.server import OrcaServer
from load.trace import Request, Run
from load.workloads import single
from services.scheduling import Knobs

SECONDS = 12.0  # of arrivals at a rate
READY = 600.0  # seconds: a first start downloads and compiles
CLIENT = "client"
Plots = dict[str, list[Panel]]  # the panels of each file by its name, without ".png"


@dataclass(frozen=True, slots=True)
class Found:
    """What a part measured. `figures` are its tables; `series` is what only its plots need, as JSON."""

    figures: Figures
    series: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peers:
    """Other servers that are measured if they are named."""

    vllm_python: Path | None = option(None, "an interpreter that has vLLM", type=Path, metavar="PATH")
    llama_server: Path | None = option(None, "llama.cpp's server; needs --gguf or --shape", type=Path, metavar="PATH")
    gguf: Path | None = option(None, "what llama.cpp's server and ours beside it serve", type=Path, metavar="FILE")

    def __bool__(self) -> bool:
        return bool(self.vllm_python or self.llama_server)


class Bench:
    """The model that is evaluated. `seconds`: how long arrivals last at each rate; other lengths follow from it.

    `release` ends the engine, so that what a server is asked next has the machine for itself.
    """

    def __init__(
        self, options: Options, seconds: float = SECONDS, peers: Peers = Peers(), engine: Engine | None = None
    ) -> None:
        self.options, self.seconds, self.peers = options, seconds, peers
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The engine in this process, which is loaded and warmed up when it is first used."""
        if self._engine is None:
            self._engine = load_as_served(model_folder(self.options), self.options.settings)
            run_in_process(self._engine, single(), Setup(Knobs(1)))
        return self._engine

    def release(self) -> None:
        self._engine = None
        release_memory()

    def shorter(self, number: int, least: int = 1) -> int:
        """`number` of something, or fewer where less than the usual time is measured."""
        return max(least, round(number * min(1.0, self.seconds / SECONDS)))

    @contextmanager
    def server(self, *flags: str, spares: bool = True) -> Iterator[OrcaServer]:
        """`orca serve` on the model with these flags, ready; with `spares` it starts nothing more."""
        self.release()
        options = self.options
        model = ["--model", served(options), "--device", options.device, "--dtype", options.dtype]
        with TemporaryDirectory() as folder, OrcaServer(Path(folder), *model, *flags, ready=READY) as server:
            if spares:
                server.until_spares()
            yield server


# --- processor time ---


@dataclass(frozen=True, slots=True)
class Spent:
    """A run, and its processor seconds by kind of process, the client's among them. `others`: the cores that other work
    had meanwhile; a run is disturbed where that is not near 0."""

    run: Run
    seconds: Mapping[str, float]
    others: float

    @property
    def chunks(self) -> int:
        return sum(answer.chunks for answer in self.run.answers)

    def per_token(self, unit: float) -> dict[str, float]:
        """Processor time of an output token by kind of process, and in all for a token and for a chunk, in units of
        `unit` seconds."""
        each = {kind: seconds / self.run.tokens / unit for kind, seconds in self.seconds.items()}
        total = sum(self.seconds.values()) / unit
        by_chunk = {"a chunk": total / self.chunks} if self.chunks else {}
        return each | {"a token": total / self.run.tokens} | by_chunk


def spend(run: Callable[[], Run], processes: Callable[[], dict[int, float]] = dict) -> Spent:
    """What `run` returned, and what it took of this process and of others: `processes` reads the processor seconds of
    a server's by their ids."""
    before, own, busy, began = processes(), own_seconds(), busy_seconds(), time.perf_counter()
    done = run()
    took, busy, own = time.perf_counter() - began, busy_seconds() - busy, own_seconds() - own
    seconds = (by_kind(before, after) if (after := processes()) else {}) | {CLIENT: own}
    return Spent(done, seconds, max(0.0, busy - sum(seconds.values())) / took)


def spend_over_http(server: OrcaServer, requests: Sequence[Request]) -> Spent:
    """Run `requests` on the server."""
    return spend(lambda: asyncio.run(run_over_http(server.url, requests)), server.processor_seconds)


def usual(measure: Callable[[], Spent], seconds: float) -> Spent:
    """The median by time of the runs that begin within `seconds`, at least one: on a fast engine a run is short."""
    runs, end = [measure()], time.monotonic() + seconds
    while time.monotonic() < end:
        runs.append(measure())
    return sorted(runs, key=lambda one: one.run.seconds)[len(runs) // 2]


def own_seconds() -> float:
    """Processor seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
