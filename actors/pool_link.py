"""The pool as one scheduler process uses it: it adds what the process says of itself, and notes each turn to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.messages import Exchange, ExchangeReply, SeatGrant
from services.pool.pool import RequestPool


class PoolLink:
    """`say` gives the gauges that go with every exchange; `turned` is when the pool was last turned to (monotonic).

    Whatever a scheduler is doing, it turns to the pool each third of its lease, or it stands still.
    """

    def __init__(self, pool: RequestPool) -> None:
        self.say: Callable[[], dict[str, float]] = dict
        self.turned = time.monotonic()
        self._pool = pool

    async def acquire(self, seat: str, owner: str, lease: float, dead_epoch: str | None = None) -> SeatGrant:
        self.turned = time.monotonic()
        return await self._pool.acquire(seat, owner, lease, dead_epoch)

    async def release(self, seat: str, epoch: str, struck: Sequence[str] = ()) -> None:
        self.turned = time.monotonic()
        await self._pool.release(seat, epoch, struck)

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        self.turned = time.monotonic()
        return await self._pool.exchange(replace(exchange, gauges=exchange.gauges | self.say()))

    async def wait_bell(self, seat: str, timeout: float) -> None:
        self.turned = time.monotonic()
        await self._pool.wait_bell(seat, timeout)
