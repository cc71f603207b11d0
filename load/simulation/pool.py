"""The pool of a simulated run: the pool's reference model, the price of its server, and the users who ask."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from gateway.pool_client.event_reader import PAUSE
from load.reference.pool import ReferencePool
from load.trace import Answer, Request
from services.loop.clock import RealClock
from services.messages import Exchange, ExchangeReply, NewSequence, Submission, SubmitReply
from services.pool.limits import Limits
from services.requests import SamplingParams

GATEWAY = "simulation"
KEEP_ENDED = 1.0  # seconds; nobody reads an ended request again
NO_LIMITS = Limits(max_waiting=1 << 60, max_bytes=1 << 60, keep_ended=KEEP_ENDED)


class SimulatedPool(ReferencePool):
    """A system that answers requests on virtual time. A user gets a token when it is committed, as in the real pool."""

    def __init__(self) -> None:
        super().__init__(RealClock(), NO_LIMITS)
        self.answers: list[Answer] = []  # in order of submission, also those that have not ended
        self._open: dict[str, tuple[Answer, asyncio.Future[None]]] = {}

    def now(self) -> float:
        return self._clock.now()

    async def ask(self, request: Request) -> Answer:
        answer = Answer(request, self._clock.now())
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        id = f"{len(self.answers):07}"
        self.answers.append(answer)
        self._open[f"{id}/0"] = answer, ended
        sampling = SamplingParams(request.max_new_tokens, temperature=0.0, ignore_eos=True)
        sequence = NewSequence(f"{id}/0", request.prompt, sampling)
        reply = await self.submit(Submission(id, GATEWAY, [sequence], background=True))
        assert reply.refused is None, f"{reply.refused = }"
        await self.unregister(GATEWAY)  # no gateway reads events: `exchange` sees the commits as they come in
        await ended
        return answer

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        reply = await super().exchange(exchange)
        assert not reply.foreign, f"{reply.foreign = }"
        assert not reply.have, f"{reply.have = }"
        now = self._clock.now()
        for commit in exchange.commits:
            answer, ended = self._open[commit.id]
            answer.tokens += commit.tokens
            answer.times += [now] * len(commit.tokens)
            if commit.end:
                assert commit.end.error is None, f"{commit.id}: {commit.end.error}"
                del self._open[commit.id]
                if not ended.cancelled():
                    ended.set_result(None)
        return reply


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of the pool server's processor.

    The defaults are those of Valkey 8.1 on a machine with two cores: `submit` and `token` of calls
    one by one, the others of runs with one shard (docs/sharding.md).
    """

    submit: float = 0.12e-3
    exchange: float = 0.21e-3
    commit: float = 7.3e-6  # each sequence of an exchange
    token: float = 0.2e-6  # each further token of a sequence
    read: float = 0.19e-3  # a gateway's read of events, and to write what it reads

    def of(self, exchange: Exchange) -> float:
        """An exchange without the reads of its events."""
        more = sum(len(commit.tokens) - 1 for commit in exchange.commits if commit.tokens)
        return self.seconds(len(exchange.commits), more)

    def seconds(self, commits: float, more: float) -> float:
        """An exchange of this many commits, with `more` tokens beyond the first of each."""
        return self.exchange + self.commit * commits + self.token * more


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


@dataclass(frozen=True, slots=True)
class Call:
    """An exchange: when it was called, and the seconds until its reply."""

    at: float
    seconds: float


class PricedPool(SimulatedPool):
    """A pool whose server has one processor: it serves one call after the other, in order, each for its price. A call
    takes effect at its end.

    Calls are free until `begin`, so that a run can start with all its users there.
    """

    def __init__(self, price: Price, gateways: int) -> None:
        super().__init__()
        self._reads = Reads(gateways)
        self.reads = 0
        self.exchanges: list[Call] = []
        self.busy = 0.0  # seconds of the processor
        self._price = price
        self._began = False
        self._free_at = 0.0

    def begin(self) -> None:
        """From this moment calls have their price."""
        self._began = True

    async def submit(self, submission: Submission) -> SubmitReply:
        await self._serve(self._price.submit)
        return await super().submit(submission)

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        called = self._clock.now()
        reads = self._reads.caused(called, len(exchange.commits))
        self.reads += reads
        await self._serve(self._price.of(exchange) + reads * self._price.read)
        self.exchanges.append(Call(called, self._clock.now() - called))
        return await super().exchange(exchange)

    async def _serve(self, seconds: float) -> None:
        if not self._began:
            return
        now = self._clock.now()
        self._free_at = max(now, self._free_at) + seconds
        self.busy += seconds
        await asyncio.sleep(self._free_at - now)


class Users:
    """`count` users, each of whom asks again as soon as its request is answered, for as long as `async with` lasts."""

    def __init__(self, pool: SimulatedPool, count: int, draw: Callable[[], Request]) -> None:
        """`draw` returns the next request, whichever user sends it."""
        self._pool = pool
        self._count = count
        self._draw = draw
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
