"""The pool of a simulated run whose server takes time, and users who ask again and again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from gateway.pool_client.event_reader import PAUSE
from load.in_process import LocalPool
from load.trace import Request
from services.messages import Exchange, ExchangeReply, Submission, SubmitReply


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of the pool server's processor.

    The defaults are those of Valkey 8.1 on a machine with two cores: `submit` and `token` of calls
    one by one, the others of runs with one shard (docs/measurements.md).
    """

    submit: float = 0.12e-3
    exchange: float = 0.21e-3
    commit: float = 7.3e-6  # each sequence of an exchange
    token: float = 0.2e-6  # each further token of a sequence
    read: float = 0.19e-3  # a gateway's read of events, and to write what it reads

    def of(self, exchange: Exchange) -> float:
        """An exchange without the reads of its events."""
        more = sum(len(commit.tokens) - 1 for commit in exchange.commits if commit.tokens)
        return self.exchange + self.commit * len(exchange.commits) + self.token * more


class Reads:
    """When gateways read the events of exchanges: at once, but `PAUSE` after their last read. Sequences are spread
    evenly over `gateways` gateways, so each exchange has events for all of them, or for one for each commit."""

    def __init__(self, gateways: int) -> None:
        self._last = [-math.inf] * gateways  # of each gateway, the time of the last read that is certain

    def caused(self, now: float, commits: int) -> int:
        """How many reads an exchange causes that no earlier one has."""
        caused = 0
        for gateway in range(min(len(self._last), commits)):
            if self._last[gateway] <= now:  # a later read takes these events along
                self._last[gateway] = max(now, self._last[gateway] + PAUSE)
                caused += 1
        return caused


class PricedPool(LocalPool):
    """A pool whose server has one processor: it serves one call after the other, in order, each for its price. A call
    takes effect at its end. Calls are free until `priced`, so that a run can start with all its users there."""

    def __init__(self, price: Price, gateways: int) -> None:
        super().__init__()
        self._reads, self._price, self._free_at = Reads(gateways), price, 0.0
        self.priced = False
        self.exchanges: list[tuple[float, float]] = []  # when each was called, and the seconds until its reply
        self.busy = 0.0  # seconds of the processor

    async def submit(self, submission: Submission) -> SubmitReply:
        await self._serve(self._price.submit)
        return await super().submit(submission)

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        called = self.now()
        reads = self._reads.caused(called, len(exchange.commits))
        await self._serve(self._price.of(exchange) + reads * self._price.read)
        self.exchanges.append((called, self.now() - called))
        return await super().exchange(exchange)

    async def _serve(self, seconds: float) -> None:
        if self.priced:
            now = self.now()
            self._free_at = max(now, self._free_at) + seconds
            self.busy += seconds
            await asyncio.sleep(self._free_at - now)


class Users:
    """`count` users, each of whom asks again as soon as its request is answered, for as long as `async with` lasts.
    `draw` returns the next request, whichever user sends it."""

    def __init__(self, pool: LocalPool, count: int, draw: Callable[[], Request]) -> None:
        self._pool, self._count, self._draw = pool, count, draw
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(self._count)]

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            await self._pool.ask(self._draw())
