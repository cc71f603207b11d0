"""The desk: where bodies and answers are worked on. Long ones off the event loop, so many at once and so many in line;
short bodies on it, one in each turn of the loop."""

from __future__ import annotations

import asyncio
import ctypes
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from gateway.errors import ApiError, Kind

P = ParamSpec("P")
T = TypeVar("T")

INLINE = 4096  # bytes or characters: what is shorter takes about a millisecond, and is not worth a thread
SHORT = 64 << 10  # bytes or characters: what is no longer takes a tenth of a second, what is longer seconds
AT_ONCE = 2  # pieces of work, each of another tenant; the interpreter runs one of them at a time, beside the loop
IN_LINE_EACH = 64 << 20  # bytes or characters of a tenant, which are in memory meanwhile
IN_LINE = 256 << 20  # of all tenants
LARGE = 256 << 10  # bytes or characters, after which memory is given back to the system


class Desk:
    """A tenant has one piece of work done at a time, the others of its own wait behind it. So a tenant that sends long
    bodies only waits for itself. One that has none in line is never refused. Short work has a place more, so that it
    does not wait for tenants that send one long body after the other.

    Short pieces wait for each other, tenants by turns. Else a thousand requests that come at once would be worked on in
    one turn of the loop, which is seconds in which nobody gets a token and no probe an answer.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE + 1, "desk")
        self._places, self._place_of_short = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(1)
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()  # bytes of each tenant, those at work included
        self._answers: Counter[str] = Counter()
        self._received: Counter[str] = Counter()  # bytes of bodies of which the rest is still to come
        self._short: dict[str, deque[asyncio.Future[None]]] = {}  # pieces that wait for a turn of the loop, by tenant
        self._had_turn = False  # a piece had this one

    async def do(self, tenant: str, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, which works on so many bytes or characters; in a thread if these are many.

        Raises ApiError where too much waits. Where the caller is cancelled while a thread works for it, that is waited
        for: a thread cannot be stopped, and its place is not free until then.
        """
        if size <= INLINE:
            await self._turn(tenant)
            return function(*args, **kwargs)
        _check_room(self._waiting, tenant, size)
        return await self._in_turn(tenant, self._waiting, size, partial(function, *args, **kwargs))

    async def answer(self, tenant: str, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for an answer of what is in memory already: it is never refused, and waits for other answers of the
        tenant, not for its bodies."""
        if size <= INLINE:
            return function(*args, **kwargs)
        return await self._in_turn(f"{tenant}\0answers", self._answers, size, partial(function, *args, **kwargs))

    async def _in_turn(self, line: str, held: Counter[str], size: int, work: Callable[[], T]) -> T:
        held[line] += size
        turn = self._turns.setdefault(line, asyncio.Lock())
        try:
            async with turn, self._place_of_short if size <= SHORT and self._places.locked() else self._places:
                doing = asyncio.get_running_loop().run_in_executor(self._threads, partial(_done, size, work))
                return await _finished(doing)
        finally:
            held[line] -= size
            if not held[line]:
                del held[line], self._turns[line]

    async def _turn(self, tenant: str) -> None:
        """Wait for a turn of the loop in which no other short piece is worked on."""
        loop = asyncio.get_running_loop()
        if self._had_turn:
            self._short.setdefault(tenant, deque()).append(turn := loop.create_future())
            await turn
        else:
            self._had_turn = True
            loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Of the tenant whose last one is longest ago. Pieces that were cancelled are passed over."""
        self._had_turn = False
        while self._short and not self._had_turn:
            tenant, line = next(iter(self._short.items()))
            del self._short[tenant]
            turn = line.popleft()
            if line:
                self._short[tenant] = line
            if not turn.done():
                self._had_turn = True
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next_turn)

    def receive(self, tenant: str, size: int) -> None:
        """So many bytes more of a body are in memory, until `received`. Raises ApiError where there are too many."""
        _check_room(self._received, tenant, size)
        self._received[tenant] += size

    def received(self, tenant: str, size: int) -> None:
        """A body of so many bytes came whole, or will not."""
        self._received[tenant] -= size
        if not self._received[tenant]:
            del self._received[tenant]

    def close(self) -> None:
        """Wait for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _check_room(held: Counter[str], tenant: str, size: int) -> None:
    own, all = held[tenant], held.total()
    if own and (own + size > IN_LINE_EACH or all + size > IN_LINE):
        text = f"{own} bytes of long requests of yours are read just now, {all} in all, here are {size} more."
        raise ApiError(Kind.TOO_MANY_LONG, text + f" At most {IN_LINE_EACH} and {IN_LINE} are; try again later.")


async def _finished(work: asyncio.Future[T]) -> T:
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def _done(size: int, work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        if size > LARGE:
            _give_back()


def _give_back() -> None:
    """Memory that is free to the system. The C library keeps it for each thread that asked for it: after a few long
    bodies a gateway would hold gigabytes."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
