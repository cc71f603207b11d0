"""RankProcesses: an engine of several processes, without Ray; to a test's driver it looks like one engine."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from services.engine.families.fit import load_fit
from services.engine.families.kept import is_kept
from services.engine.families.registry import load_spec
from services.engine.parallel.layout import Layout
from services.engine.parallel.links import Links
from services.engine.parallel.process_groups import open_meeting
from services.engine.settings import EngineSettings
from services.engine.weights.tensors import Checkpoint
from services.messages import EngineFigures, Iteration, IterationResult

Make = Callable[[Path, EngineSettings, Layout], Any]  # of a rank's engine, by name of a module's function

HERE = "127.0.0.1"
PATIENCE = 200.0  # seconds; processes that import torch side by side on two busy cores take tens of them
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["services.engine.engine", "transformers.models.llama", "transformers.models.gpt2"])


class RankProcesses:
    """Real processes, connected like those of an engine, each controlled by a pipe. Used by `with`.

    `make` makes a rank's engine in its process. `read` is the bytes of the checkpoint that each rank has read.
    """

    def __init__(self, folder: Path, settings: EngineSettings, make: Make | None = None) -> None:
        self.layout = Layout(settings.tp, settings.pp)
        if not make:
            _learn(folder, settings)
        self._meeting = open_meeting(HERE)
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(self.layout.size):
            ours, theirs = FORKS.Pipe()
            place = replace(self.layout, rank=rank), f"{HERE}:{self._meeting.port}"
            arguments = (theirs, folder, settings, *place, make or _load)
            self.processes.append(FORKS.Process(target=_rank, args=arguments, daemon=True))
            self.processes[-1].start()
            theirs.close()
            self._pipes.append(ours)
        self.read: list[int] = [self._answer(pipe) for pipe in self._pipes]
        self._unsent: list[IterationResult] = []
        self._flights: deque[int] = deque()
        self.figures: EngineFigures

    def __enter__(self) -> RankProcesses:
        self.link("e")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def link(self, epoch: str) -> None:
        """Link all ranks at once, as an owner does under `epoch` when it attaches."""
        self.figures = self.all("link", epoch)[self.layout.sampler]

    def perplexity(self, ids: list[int]) -> float:
        value: float = self.all("perplexity", ids)[self.layout.sampler]
        return value

    def reset(self, epoch: str) -> None:
        self._unsent.clear()
        self.all("reset", epoch)

    def run(self, iteration: Iteration) -> IterationResult:
        self.start(iteration)
        return self.result()

    def start(self, iteration: Iteration) -> None:
        """Send the iteration to all ranks without waiting for any."""
        for pipe in self._pipes:
            pipe.send(("run", (iteration, self._unsent)))
        self._unsent = []

    def result(self) -> IterationResult:
        """The result of the oldest iteration that was started."""
        result: IterationResult = [self._answer(pipe) for pipe in self._pipes][self.layout.sampler]
        self._unsent.append(result)
        return result

    def all(self, what: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks; raises what a rank raised."""
        for pipe in self._pipes:
            pipe.send((what, arguments))
        return [self._answer(pipe) for pipe in self._pipes]

    def one(self, rank: int, what: str, *arguments: Any) -> None:
        """Call one rank without waiting for its answer."""
        self._pipes[rank].send((what, arguments))

    def answer(self, rank: int) -> Any:
        return self._answer(self._pipes[rank])

    @staticmethod
    def _answer(pipe: Connection) -> Any:
        assert pipe.poll(PATIENCE), "a rank does not answer"
        answer = pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def counted_bytes() -> Iterator[list[int]]:
    """The bytes of each tensor, or part of one, that is read from a checkpoint within."""
    read, counts = Checkpoint.read, list[int]()

    def counting(self: Checkpoint, *arguments: Any, **named: Any) -> torch.Tensor:
        tensor = read(self, *arguments, **named)
        counts.append(tensor.nbytes)
        return tensor

    with patch.object(Checkpoint, "read", counting):
        yield counts


def _learn(folder: Path, settings: EngineSettings) -> None:
    """Keep what transformers says about the model: each rank would take seconds to ask for itself."""
    if not is_kept(folder, settings.cache_dir):
        load_spec(folder, settings.cache_dir)
        load_fit(folder, settings.cache_dir)


def _load(folder: Path, settings: EngineSettings, layout: Layout) -> Any:
    """On CUDA each rank sees only its own GPU, as under Ray."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = seen.split(",") if seen else [str(gpu) for gpu in range(layout.size)]
    if settings.device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[layout.rank]
    from services.engine.engine import Engine

    return Engine.load(folder, settings, layout.rank)


def _rank(pipe: Connection, folder: Path, settings: EngineSettings, layout: Layout, meeting: str, make: Make) -> None:
    from perplexity import perplexity

    engine: Any = None
    links = None
    try:
        with counted_bytes() as read:
            engine = make(folder, settings, layout)
        pipe.send(sum(read))
        while True:
            what, arguments = pipe.recv()
            try:
                if what == "link":
                    if links:
                        links.close()
                    device = torch.device(settings.device)
                    links = Links(layout, HERE, meeting, *arguments, lambda: False, device)
                    engine.link(links)
                    pipe.send(engine.figures)
                elif what == "perplexity":
                    pipe.send(perplexity(engine, *arguments))
                else:
                    pipe.send(getattr(engine, what)(*arguments))
            except RuntimeError as error:
                pipe.send(RuntimeError(str(error)))
    except EOFError:
        return
    except Exception as error:
        pipe.send(error)
