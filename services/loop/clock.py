"""Time as the loop sees it: the running event loop's, which is real or, under `run_in_virtual_time`, jumps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Iterable
from math import isfinite
from typing import Any, TypeVar

T = TypeVar("T")


class RealClock:
    """The time of the running event loop."""

    def now(self) -> float:
        """Seconds, monotonic."""
        return asyncio.get_running_loop().time()

    async def wait(self, future: asyncio.Future[Any], timeout: float) -> bool:
        """Whether `future` is done within `timeout` seconds; it is not cancelled by this."""
        await self.wait_any([future], timeout)
        return future.done()

    async def wait_any(self, futures: Iterable[asyncio.Future[Any]], timeout: float) -> None:
        """Return when one of `futures` is done, or after `timeout` seconds; none is cancelled by this."""
        pending = list(futures)
        if not pending:
            await asyncio.sleep(max(0.0, timeout))
        else:
            limit = max(0.0, timeout) if isfinite(timeout) else None
            await asyncio.wait(pending, timeout=limit, return_when=asyncio.FIRST_COMPLETED)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, but let every wait end at once: while nothing can run, time jumps to the
    next timer. Equal programs see equal times and interleavings. No sockets, threads or processes under it.

    Raises RuntimeError when everything waits and no timer is set.
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
    """Knows no files but the loop's own wake-up pipe, and lets time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError(f"all wait for each other at virtual time {self.now}")
        self.now += max(0.0, timeout)
        return []
