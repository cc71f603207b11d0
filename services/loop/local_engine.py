"""LocalEngine: an engine in this process, as EngineLoop wants it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from services.messages import Iteration, IterationResult


class SynchronousEngine(Protocol):
    """`services.engine.Engine`, `NullEngine`: something whose `run` returns when the iteration is done."""

    def run(self, iteration: Iteration) -> IterationResult: ...


class LocalEngine:
    """Runs the iterations of `engine` in one thread of its own, in order; PyTorch lets the others run meanwhile."""

    def __init__(self, engine: SynchronousEngine) -> None:
        self._engine = engine
        self._last: asyncio.Future[IterationResult] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Begin the iteration now; awaiting gives its result or raises what `run` raised.

        Returns once the engine is at it, if it was idle: one thread of Python runs at a time, the engine comes first.
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
        """Wait for the iteration that runs, and end the thread."""
        self._thread.shutdown()
