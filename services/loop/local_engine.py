"""An engine in the process of its EngineLoop, and the seat of such a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from services.messages import Iteration, IterationResult


@dataclass(slots=True)
class LocalSeat:
    """A seat that its scheduler never loses."""

    name: str
    epoch: str
    call: int = 0


class SynchronousEngine(Protocol):
    """An engine whose `run` returns when the iteration is done: `services.engine.Engine` and `NullEngine`."""

    def run(self, iteration: Iteration) -> IterationResult: ...


class LocalEngine:
    """Runs the iterations of `engine` in order in a thread. PyTorch releases the GIL, so other threads run as well."""

    def __init__(self, engine: SynchronousEngine) -> None:
        self._engine = engine
        self._last: asyncio.Future[IterationResult] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Start the iteration. Awaiting the return value gives the result or raises what `run` raised.

        If the engine was idle, this returns after it has started: only one Python thread runs at a time, and the
        engine goes first.
        """
        begun = threading.Event()

        def run() -> IterationResult:
            begun.set()
            return self._engine.run(iteration)

        idle = self._last is None or self._last.done()
        self._last = asyncio.get_running_loop().run_in_executor(self._thread, run)
        if idle:
            begun.wait()
        return self._last

    def close(self) -> None:
        """Wait for the running iteration and end the thread."""
        self._thread.shutdown()
