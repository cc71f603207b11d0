"""PoolLine: a seat's way to the pool: one exchange at a time, repeated until it is answered, and the bell."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from services.errors import PoolUnavailable, StaleEpoch
from services.loop.protocols import Clock, Pool, Seat
from services.messages import Exchange, ExchangeReply

FIRST_RETRY = 0.02  # seconds between a failed exchange and its repeat; doubles up to a third of the lease


class PoolLine:
    """An exchange that fails is repeated unchanged, since nobody knows whether it arrived.

    `in_doubt` is set while the pool may know less than it should: at first; when its server was away, which may have
    come back with an older state; when a reply shows that it has. The next new exchange should then say all: the
    engine's figures, and which requests its sender holds.
    """

    def __init__(self, pool: Pool, clock: Clock, seat: Seat, renewal: float) -> None:
        """`renewal`: seconds after which the lease wants renewing."""
        self.in_doubt = True
        self.began = -inf  # the last call
        self._pool = pool
        self._clock = clock
        self._seat = seat
        self._renewal = renewal
        self._exchange: Exchange | None = None  # not answered yet
        self._call: asyncio.Future[ExchangeReply] | None = None
        self._bell: asyncio.Future[None] | None = None
        self._retry_at, self._backoff = 0.0, FIRST_RETRY

    @property
    def busy(self) -> bool:
        """Whether an exchange is not answered yet."""
        return self._exchange is not None

    @property
    def under_way(self) -> list[asyncio.Future[Any]]:
        """The call whose outcome is not known yet, if any."""
        return [self._call] if self._call else []

    def due(self) -> float:
        """When the exchange that is not answered is to be repeated; the distant future while it is under way."""
        return inf if self._call else self._retry_at

    def send(self, exchange: Exchange) -> None:
        assert not self.busy, f"exchange {self._exchange} is not answered"
        self._exchange = exchange
        self.repeat()

    def repeat(self) -> None:
        assert self._exchange is not None
        assert self._call is None
        self.began = self._clock.now()
        self._call = asyncio.ensure_future(self._pool.exchange(self._exchange))

    def receive(self) -> tuple[Exchange, ExchangeReply] | None:
        """An exchange with its reply, if it is there. Raises StaleEpoch if the seat is another's."""
        if self._call is None or not self._call.done():
            return None
        call, self._call = self._call, None
        try:
            reply = call.result()
        except PoolUnavailable:
            self.in_doubt = True
            self._retry_at = self._clock.now() + self._backoff
            self._backoff = min(2 * self._backoff, self._renewal)
            return None
        if not reply.owned:
            raise StaleEpoch(f"epoch {self._seat.epoch} of seat {self._seat.name} is over")
        exchange, self._exchange, self._backoff = self._exchange, None, FIRST_RETRY
        assert exchange is not None
        if reply.lost or reply.foreign or reply.have:
            self.in_doubt = True
        return exchange, reply

    async def wait_bell(self, other: asyncio.Future[Any], within: float = inf) -> None:
        """Until the pool rings, the lease wants renewing, `other` is done, `within` seconds are over, or `wake`."""
        timeout = min(self._renewal, within)
        bell = self._bell = asyncio.ensure_future(self._pool.wait_bell(self._seat.name, timeout))
        try:
            await self._clock.wait_any([bell, other], 2 * self._renewal)  # a dead connection must not cost the lease
        finally:
            self._bell = None
            if not bell.done():
                bell.cancel()
                bell.add_done_callback(forget)
        if bell.done() and not bell.cancelled() and (error := bell.exception()):
            if not isinstance(error, PoolUnavailable):
                raise error
            self.in_doubt = True
            await self._clock.wait_any([other], self._backoff)

    def wake(self) -> None:
        """Let `wait_bell` return now."""
        if self._bell:
            self._bell.cancel()

    async def close(self) -> None:
        """Give the call under way, which may carry tokens, the time to arrive; wait for no more."""
        if self._call:
            await self._clock.wait_any([self._call], self._renewal)
            self._call.cancel()
            self._call.add_done_callback(forget)


def forget(future: asyncio.Future[Any]) -> None:
    """Whatever a future that nobody awaits any more brings."""
    if not future.cancelled():
        future.exception()
