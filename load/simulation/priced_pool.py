"""PricedPool: a pool whose server has one processor, so that calls wait for each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from load.simulation.pool import SimulatedPool
from services.messages import Exchange, ExchangeReply, Submission, SubmitReply


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of the server's processor.

    The defaults are those of Valkey 8.1 in docs/benchmarks.md (part `pool`, "in the server").
    """

    submit: float = 0.12e-3
    exchange: float = 0.14e-3
    commit: float = 4.9e-6  # each sequence of an exchange
    token: float = 0.2e-6  # each of its tokens but the first

    def of(self, exchange: Exchange) -> float:
        more = sum(len(commit.tokens) - 1 for commit in exchange.commits if commit.tokens)
        return self.exchange + self.commit * len(exchange.commits) + self.token * more


@dataclass(frozen=True, slots=True)
class Call:
    """An exchange: when it was called, its seconds until the reply."""

    at: float
    seconds: float


class PricedPool(SimulatedPool):
    """Serves one call after the other, in order, each for its price; what it does, it does at the end.

    Free of charge until `begin`, so that a run can start with all its users there.
    """

    def __init__(self, price: Price) -> None:
        super().__init__()
        self.exchanges: list[Call] = []
        self.busy = 0.0  # seconds of the processor
        self._price = price
        self._began = False
        self._free_at = 0.0

    def begin(self) -> None:
        """From now on calls have their price."""
        self._began = True

    async def submit(self, submission: Submission) -> SubmitReply:
        await self._serve(self._price.submit)
        return await super().submit(submission)

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        called = self._clock.now()
        await self._serve(self._price.of(exchange))
        self.exchanges.append(Call(called, self._clock.now() - called))
        return await super().exchange(exchange)

    async def _serve(self, seconds: float) -> None:
        if not self._began:
            return
        now = self._clock.now()
        self._free_at = max(now, self._free_at) + seconds
        self.busy += seconds
        await asyncio.sleep(self._free_at - now)
