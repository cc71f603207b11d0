"""The pool of a simulated run: the reference model, which notes when each token is committed."""

from __future__ import annotations

import asyncio

from load.simulation.engine import TOKEN
from load.simulation.outcome import Served
from load.simulation.traces import Size
from services.clock import RealClock
from services.messages import Exchange, ExchangeReply, NewSequence, Submission
from services.pool.limits import Limits
from services.pool.reference.pool import ReferencePool
from services.requests import SamplingParams

GATEWAY = "simulation"
KEPT = 1.0  # seconds that what has ended is kept: nobody reads it again
NO_LIMITS = Limits(max_waiting=1 << 60, max_bytes=1 << 60, keep_ended=KEPT)


class SimulatedPool(ReferencePool):
    """A user gets a token when it is committed, as in the real pool."""

    def __init__(self) -> None:
        super().__init__(RealClock(), NO_LIMITS)
        self.served: list[Served] = []  # in order of submission
        self._open: dict[str, tuple[Served, asyncio.Future[Served]]] = {}

    async def ask(self, size: Size) -> asyncio.Future[Served]:
        """Submit a request; the future is done when its last token is committed."""
        served = Served(size.prompt, self._clock.now())
        future: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
        request = f"{len(self.served):07}"
        self.served.append(served)
        self._open[f"{request}/0"] = served, future
        sampling = SamplingParams(size.output, temperature=0.0, ignore_eos=True)
        sequence = NewSequence(f"{request}/0", [TOKEN] * size.prompt, sampling)
        reply = await self.submit(Submission(request, GATEWAY, [sequence], background=True))
        assert reply.refused is None, f"{reply.refused = }"
        await self.unregister(GATEWAY)  # nobody reads events: the commits are seen as they come in
        return future

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        reply = await super().exchange(exchange)
        assert not reply.foreign, f"{reply.foreign = }"
        assert not reply.have, f"{reply.have = }"
        now = self._clock.now()
        for commit in exchange.commits:
            served, future = self._open[commit.id]
            served.times += [now] * len(commit.tokens)
            if commit.end:
                assert commit.end.error is None, f"{commit.id}: {commit.end.error}"
                del self._open[commit.id]
                if not future.cancelled():
                    future.set_result(served)
        return reply
