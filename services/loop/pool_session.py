"""PoolSession: a seat's calls to the pool, which are one exchange at a time, and the bell while there is no work."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, Protocol

from services.errors import PoolUnavailable, StaleEpoch
from services.loop.clock import now, wait_any
from services.messages import Exchange, ExchangeReply

FIRST_RETRY = 0.02  # seconds before a failed exchange is repeated; doubles up to a third of the lease


class Pool(Protocol):
    """A request pool. Both methods raise `PoolUnavailable` while its server is away."""

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Commit, renew the lease and claim in one atomic call, which can be repeated with the same call number."""
        ...

    async def wait_bell(self, seat: str, timeout: float) -> None:
        """Return when an idle seat may find work, or after `timeout` seconds."""
        ...


class Seat(Protocol):
    """An engine's place in the pool, owned under the epoch that `acquire` returned."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> str: ...

    call: int  # the number of the last exchange under this epoch


class PoolSession:
    """Sends exchanges. One that fails is repeated unchanged, because it may have been executed all the same.

    `in_doubt` is true while the pool may lack some state of this seat: before the first exchange; after the pool's
    server was away, because it may have come back with an older state; and after a reply that shows such a loss. The
    next new exchange must then carry the full state: the engine's figures and all requests that the sender holds.
    """

    def __init__(self, pool: Pool, seat: Seat, renewal: float) -> None:
        """`renewal`: seconds after which the lease has to be renewed."""
        self.in_doubt = True
        self.started_at = -inf  # when the last call started
        self._pool = pool
        self._seat = seat
        self._renewal = renewal
        self._exchange: Exchange | None = None  # the one that is not answered yet
        self._call: asyncio.Future[ExchangeReply] | None = None
        self._bell: asyncio.Future[None] | None = None
        self._retry_at, self._backoff = 0.0, FIRST_RETRY

    @property
    def busy(self) -> bool:
        """Whether an exchange waits for its reply."""
        return self._exchange is not None

    @property
    def pending_calls(self) -> list[asyncio.Future[Any]]:
        """The call that has not returned yet, if there is one."""
        return [self._call] if self._call else []

    def retry_at(self) -> float:
        """Return when to repeat the exchange that is not answered; infinite while its call has not returned."""
        return inf if self._call else self._retry_at

    def send(self, exchange: Exchange) -> None:
        assert not self.busy, f"exchange {self._exchange} is not answered"
        self._exchange = exchange
        self.resend()

    def resend(self) -> None:
        """Call the pool with the exchange that is not answered."""
        assert self._exchange is not None
        assert self._call is None
        self.started_at = now()
        self._call = asyncio.ensure_future(self._pool.exchange(self._exchange))

    def receive(self) -> tuple[Exchange, ExchangeReply] | None:
        """Return an exchange with its reply if it has arrived. Raises StaleEpoch if the seat has another owner."""
        if self._call is None or not self._call.done():
            return None
        call, self._call = self._call, None
        try:
            reply = call.result()
        except PoolUnavailable:
            self.in_doubt = True
            self._retry_at = now() + self._backoff
            self._backoff = min(2 * self._backoff, self._renewal)
            return None
        if not reply.owned:
            raise StaleEpoch(f"epoch {self._seat.epoch} of seat {self._seat.name} is over")
        exchange, self._exchange, self._backoff = self._exchange, None, FIRST_RETRY
        assert exchange is not None
        if reply.lost or reply.foreign or reply.have:
            self.in_doubt = True
        return exchange, reply

    async def wait_bell(self, other: asyncio.Future[Any], at_most: float = inf) -> None:
        """Wait until the pool rings the bell, the lease has to be renewed, `other` is done, `at_most` seconds have
        passed, or `wake` is called.
        """
        timeout = min(self._renewal, at_most)
        bell = self._bell = asyncio.ensure_future(self._pool.wait_bell(self._seat.name, timeout))
        try:
            await wait_any([bell, other], 2 * self._renewal)  # a dead connection must not cost the lease
        finally:
            self._bell = None
            if not bell.done():
                bell.cancel()
                bell.add_done_callback(discard_outcome)
        if bell.done() and not bell.cancelled() and (error := bell.exception()):
            if not isinstance(error, PoolUnavailable):
                raise error
            self.in_doubt = True
            await wait_any([other], self._backoff)

    def wake(self) -> None:
        """Make `wait_bell` return now."""
        if self._bell:
            self._bell.cancel()

    async def close(self) -> None:
        """Give the pending call, which may carry tokens, time to arrive. Nothing is sent afterwards."""
        if self._call:
            await wait_any([self._call], self._renewal)
            self._call.cancel()
            self._call.add_done_callback(discard_outcome)


def discard_outcome(future: asyncio.Future[Any]) -> None:
    """A callback for futures that are not awaited: asyncio does not log their exceptions."""
    if not future.cancelled():
        future.exception()
