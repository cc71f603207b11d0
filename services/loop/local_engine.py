"""An engine in the process of its EngineLoop, and the seat of such a loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from services.messages import Iteration, IterationResult
from services.started import Started

LOOK = 2e-5  # seconds between looks at a device that works: much less than an iteration takes


@dataclass(slots=True)
class LocalSeat:
    """A seat that its scheduler never loses."""

    name: str
    epoch: str
    call: int = 0


class SynchronousEngine(Protocol):
    """An engine for one thread: `services.engine.Engine` and `NullEngine`."""

    def start(self, iteration: Iteration) -> Started[IterationResult]: ...


@dataclass(slots=True)
class _Order:
    iteration: Iteration
    result: Future[IterationResult]
    begun: threading.Event


class LocalEngine:
    """Runs the iterations of `engine` in order in a thread. PyTorch releases the GIL, so other threads run as well."""

    def __init__(self, engine: SynchronousEngine) -> None:
        self._engine = engine
        self._last: Future[IterationResult] | None = None
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)
        self._thread.start()

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Start the iteration. Awaiting the return value gives the result or raises what the engine raised.

        If the engine was idle, this returns after it has started: only one Python thread runs at a time, and the
        engine goes first.
        """
        idle = self._last is None or self._last.done()
        order = _Order(iteration, Future(), threading.Event())
        self._last = order.result
        self._orders.put(order)
        if idle:
            order.begun.wait()
        return asyncio.wrap_future(order.result)

    def close(self) -> None:
        """Wait for the running iterations and end the thread."""
        self._orders.put(None)
        self._thread.join()

    def _live(self) -> None:
        running = deque[tuple[_Order, Started[IterationResult]]]()
        closing = False
        while running or not closing:
            if running and (closing or running[0][1].done()):
                order, started = running.popleft()
                with _raising(order.result):
                    order.result.set_result(started.result())
                continue
            with contextlib.suppress(Empty):
                if not (next_ := self._orders.get(timeout=LOOK if running else None)):
                    closing = True
                elif next_.result.set_running_or_notify_cancel():
                    next_.begun.set()
                    with _raising(next_.result):
                        running.append((next_, self._engine.start(next_.iteration)))


@contextlib.contextmanager
def _raising(result: Future[IterationResult]) -> Iterator[None]:
    """Whatever is raised within is the outcome."""
    try:
        yield
    except BaseException as error:
        result.set_exception(error)
