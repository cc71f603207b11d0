"""FairExecutor: runs the work on bodies and answers. Long work runs in threads, with a limit on its concurrency and on
its size; short work runs on the event loop, one piece per iteration of the loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from gateway.errors import ApiError, Kind
from services.limits import return_memory

P = ParamSpec("P")
T = TypeVar("T")

# sizes in bytes or characters
INLINE = 4096  # up to this size work takes about a millisecond and runs on the event loop
SHORT = 64 << 10  # up to this size work takes about 0.1 s, beyond it seconds
WORKERS = 2  # pieces of work, each of another tenant; the interpreter runs one of them at a time, beside the loop
MAX_PENDING_PER_TENANT = 64 << 20  # in memory while it waits
MAX_PENDING = 256 << 20  # of all tenants
LARGE = 256 << 10  # beyond this size free memory is returned to the system after the work


class FairExecutor:
    """One piece of long work of a tenant runs at a time; its other pieces wait for it. So a tenant that sends long
    bodies delays only itself. A tenant without pending work is never refused. Short work has one more slot, so that it
    does not wait for tenants that send one long body after another.

    Work on the event loop also takes turns by tenant. Otherwise a thousand concurrent requests would be handled in one
    iteration of the loop, which would delay all tokens and probes by seconds.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(WORKERS + 1, "executor")
        self._slots, self._short_slot = asyncio.Semaphore(WORKERS), asyncio.Semaphore(1)
        self._locks: dict[str, asyncio.Lock] = {}  # by queue
        self._pending: Counter[str] = Counter()  # size of the work of each tenant, including what runs
        self._answers: Counter[str] = Counter()  # the same for answers
        self._receiving: Counter[str] = Counter()  # bytes of incomplete bodies by tenant
        self._inline: dict[str, deque[asyncio.Future[None]]] = {}  # work that waits for the event loop, by tenant
        self._inline_ran = False  # in this iteration of the loop

    async def run(self, tenant: str, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, which handles `size` bytes or characters; in a thread if these are many.

        Raises ApiError if too much work is pending. A cancelled caller waits for its thread, which cannot be stopped
        and occupies its slot until it ends.
        """
        if size <= INLINE:
            await self._inline_turn(tenant)
            return function(*args, **kwargs)
        _check_room(self._pending, tenant, size)
        return await self._in_thread(tenant, self._pending, size, partial(function, *args, **kwargs))

    async def run_answer(
        self, tenant: str, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of `function`, which makes an answer of `size` bytes of data that are in memory already; in a
        thread if these are many. It is never refused, and waits for other answers of the tenant, but not for its
        bodies."""
        if size <= INLINE:
            return function(*args, **kwargs)
        return await self._in_thread(f"{tenant}\0answers", self._answers, size, partial(function, *args, **kwargs))

    async def _in_thread(self, queue: str, pending: Counter[str], size: int, work: Callable[[], T]) -> T:
        pending[queue] += size
        lock = self._locks.setdefault(queue, asyncio.Lock())
        try:
            async with lock, self._short_slot if size <= SHORT and self._slots.locked() else self._slots:
                running = asyncio.get_running_loop().run_in_executor(self._threads, partial(_run, size, work))
                return await _finished(running)
        finally:
            pending[queue] -= size
            if not pending[queue]:
                del pending[queue], self._locks[queue]

    async def _inline_turn(self, tenant: str) -> None:
        """Wait for an iteration of the event loop without other inline work."""
        loop = asyncio.get_running_loop()
        if self._inline_ran:
            self._inline.setdefault(tenant, deque()).append(turn := loop.create_future())
            await turn
        else:
            self._inline_ran = True
            loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Give the turn to the tenant that has waited longest for one. Cancelled work is skipped."""
        self._inline_ran = False
        while self._inline and not self._inline_ran:
            tenant, turns = next(iter(self._inline.items()))
            del self._inline[tenant]
            turn = turns.popleft()
            if turns:
                self._inline[tenant] = turns
            if not turn.done():
                self._inline_ran = True
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next_turn)

    def reserve(self, tenant: str, size: int) -> None:
        """Count `size` more bytes of an incomplete body until `release`. Raises ApiError if there are too many."""
        _check_room(self._receiving, tenant, size)
        self._receiving[tenant] += size

    def release(self, tenant: str, size: int) -> None:
        """The body of which `size` bytes are reserved is complete, or was abandoned."""
        self._receiving[tenant] -= size
        if not self._receiving[tenant]:
            del self._receiving[tenant]

    def close(self) -> None:
        """Stop without waiting for pending work."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _check_room(pending: Counter[str], tenant: str, size: int) -> None:
    own, all = pending[tenant], pending.total()
    if own and (own + size > MAX_PENDING_PER_TENANT or all + size > MAX_PENDING):
        text = f"{own} bytes of your long requests are being read, {all} bytes in all; this one has {size} more."
        limits = f" The limits are {MAX_PENDING_PER_TENANT} and {MAX_PENDING} bytes; try again later."
        raise ApiError(Kind.TOO_MANY_LONG, text + limits)


async def _finished(work: asyncio.Future[T]) -> T:
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def _run(size: int, work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        if size > LARGE:
            return_memory()
