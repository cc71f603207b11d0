"""The time of the running event loop, which is real time or, under `run_in_virtual_time`, virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from math import isfinite
from typing import Any, TypeVar

T = TypeVar("T")


def now() -> float:
    """Seconds, monotonic."""
    return asyncio.get_running_loop().time()


async def wait_any(futures: Sequence[asyncio.Future[Any]], timeout: float) -> None:
    """Return when one of `futures` is done, or after `timeout` seconds. No future is cancelled."""
    loop = asyncio.get_running_loop()  # asyncio.wait costs twice as much, and each iteration waits twice
    waiter = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(max(0.0, timeout), wake) if isfinite(timeout) else None
    for future in futures:
        future.add_done_callback(wake)
    try:
        await waiter
    finally:
        if timer:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(wake)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` like `asyncio.run`, but on virtual time: when no task can run, time jumps to the next timer. Equal
    programs have equal times and interleavings. `main` must not use sockets, threads or processes.

    Raises RuntimeError if all tasks wait and no timer is set.
    """
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumper = _JumpingSelector()
        super().__init__(self._jumper)

    def time(self) -> float:
        return self._jumper.now


class _JumpingSelector(selectors.SelectSelector):
    """Advances the time instead of waiting. The only file it knows is the wake-up pipe of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError(f"all wait for each other at virtual time {self.now}")
        self.now += max(0.0, timeout)
        return []
