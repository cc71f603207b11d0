"""An EngineLoop on virtual time, with a pool whose calls take time and can fail, and an engine that only waits."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from load.reference.pool import ReferencePool
from load.reference.state import LoopClock
from services.errors import EngineLost, PoolUnavailable
from services.loop.clock import now, run_in_virtual_time
from services.loop.engine_loop import NEVER, EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.local_engine import LocalSeat
from services.loop.observers import Observer
from services.messages import (
    EngineFigures,
    Exchange,
    ExchangeReply,
    Iteration,
    IterationResult,
    NewSequence,
    Submission,
)
from services.metrics import Counters
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler
from services.sleep import SleepRule
from services.tracing.tenures import TenureTraces
from services.tracing.tracer import Tracer

SEAT = "c/0"
BLOCK = 16
EOS = 2
WORD = 7


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A decorator that runs an async test on virtual time."""

    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        run_in_virtual_time(main())

    return run


class Connection:
    """A connection to the pool. Each call takes `seconds`. While it is `down`, requests or replies are lost."""

    def __init__(self, pool: ReferencePool, seconds: float) -> None:
        self.pool = pool
        self.seconds = seconds
        self.down: str = ""  # "request": calls do not arrive; "reply": they are executed, replies are lost
        self.sent: list[tuple[float, Exchange]] = []
        self.replies: list[tuple[float, ExchangeReply]] = []
        self.bells: list[float] = []
        self._cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def cut(self) -> None:
        """Make all pending calls fail, as if the server died."""
        cut, self._cut = self._cut, asyncio.get_running_loop().create_future()
        cut.set_result(None)

    async def away(self, seconds: float) -> None:
        """Lose all requests for so long."""
        self.down = "request"
        await asyncio.sleep(seconds)
        self.down = ""

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        self.sent.append((now(), exchange))
        down, cut = self.down, self._cut
        await asyncio.sleep(self.seconds)
        if down == "request" or cut.done():
            raise PoolUnavailable("the request was lost")
        reply = await self.pool.exchange(exchange)
        if down == "reply":
            raise PoolUnavailable("the reply was lost")
        self.replies.append((now(), reply))
        return reply

    async def wait_bell(self, seat: str, timeout: float) -> None:
        self.bells.append(now())
        if self.down:
            raise PoolUnavailable("the request was lost")
        cut = self._cut
        bell = asyncio.ensure_future(self.pool.wait_bell(seat, timeout))
        try:
            await asyncio.wait([bell, cut], return_when=asyncio.FIRST_COMPLETED)
        finally:
            bell.cancel()
        if cut.done():
            raise PoolUnavailable("the pool is gone")


class Backup:
    """A copy of the state of the pool's server, like its file, which can be restored."""

    KEPT = ("_clock", "limits", "_bells", "_arrivals")  # not part of the server's state, or part of its connections

    def __init__(self, pool: ReferencePool) -> None:
        self._pool = pool
        self._state = copy.deepcopy({name: value for name, value in vars(pool).items() if name not in self.KEPT})

    def restore(self) -> None:
        vars(self._pool).update(copy.deepcopy(self._state))


@dataclass
class WaitingEngine:
    """Runs iterations in order, each for `seconds(iteration)`, with `stages` of them at the same time. It samples
    `token(id)` for each request, also for chunks. It dies in iteration `dies` and hangs in iteration `hangs`.
    """

    seconds: Callable[[Iteration], float]
    token: Callable[[str], int] = lambda id: WORD
    dies: int = 0
    hangs: int = 0
    stages: int = 1
    delay: float = 0.0  # seconds until a result arrives
    ran: list[tuple[float, Iteration]] = field(default_factory=list)  # iterations with the times at which they started
    _free: float = 0.0  # when the first stage is free

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        began, seconds = max(now(), self._free), self.seconds(iteration)
        self._free = began + seconds / self.stages
        self.ran.append((began, iteration))
        return asyncio.ensure_future(self._run(iteration, began + seconds))

    async def _run(self, iteration: Iteration, done: float) -> IterationResult:
        await asyncio.sleep(done - now() + self.delay)
        if iteration.step == self.hangs:
            await asyncio.Event().wait()
        if iteration.step == self.dies:
            raise EngineLost("it died")
        tokens = {id: self.token(id) for id in iteration.scheduled}
        return IterationResult(iteration.epoch, iteration.step, tokens)

    def batches(self) -> list[dict[str, int]]:
        return [iteration.scheduled for _, iteration in self.ran]


class World:
    """One pool, one seat, one engine. It must be created in the virtual event loop."""

    def __init__(
        self,
        kind: type[Scheduler] = Scheduler,
        batch: int = 4,
        blocks: int = 1000,
        lease: float = 5.0,
        iteration: Callable[[Iteration], float] = lambda iteration: 0.1,
        exchange: float = 0.001,
        knobs: Knobs | None = None,
        sleep: SleepRule = NEVER,
    ) -> None:
        self.sleep = sleep
        self.kind, self.knobs, self.lease = kind, knobs or Knobs(batch), lease
        self.figures = EngineFigures("m", 4096, blocks, BLOCK, 100, "n")
        self.pool = ReferencePool(LoopClock())
        self.connection = Connection(self.pool, exchange)
        self.engine = WaitingEngine(iteration, stages=self.knobs.batches_in_flight)
        self.counters = Counters()
        self.cost = IterationCost()
        self.tracer: Tracer | None = None
        self.observers: list[Observer] = []
        self.drain_timeout = 10.0

    async def run(self, owner: str = "me", dead_epoch: str | None = None, seat: str = SEAT) -> asyncio.Task[None]:
        """Take the seat, which is free, and run the loop of its new owner in a task."""
        return asyncio.create_task((await self.take_seat(owner, dead_epoch, seat)).run())

    async def take_seat(self, owner: str = "me", dead_epoch: str | None = None, seat: str = SEAT) -> EngineLoop:
        """Acquire the seat, which is free. Returns the loop of its new owner."""
        loop = await self.try_seat(owner, dead_epoch, seat)
        assert loop is not None
        return loop

    async def try_seat(self, owner: str = "me", dead_epoch: str | None = None, seat: str = SEAT) -> EngineLoop | None:
        """Acquire the seat. Returns the loop of its new owner, or None while the seat has another one."""
        await self.pool.heartbeat("g", 1, {}, ttl=1e9)
        grant = await self.pool.acquire(seat, owner, self.lease, dead_epoch)
        if not grant.granted:
            return None
        self.epoch = epoch = grant.epoch
        self.scheduler = self.kind(
            epoch=epoch,
            figures=self.figures,
            knobs=self.knobs,
            eos_token_ids=[EOS],
            now=now,
        )
        self.seat = LocalSeat(seat, epoch)
        self.loop = EngineLoop(
            self.connection,
            self.scheduler,
            self.engine,
            self.seat,
            self.lease,
            self.figures,
            self.counters,
            self.cost,
            observers=[*self.observers, *([TenureTraces(self.tracer, seat, epoch, now)] if self.tracer else [])],
            drain_timeout=self.drain_timeout,
            sleep=self.sleep,
        )
        return self.loop

    async def submit(self, request: str, prompt: int = 16, new: int = 4, trace: str = "") -> str:
        """Submit one sequence and return its id."""
        sequence = NewSequence(f"{request}/0", [WORD] * prompt, SamplingParams(new))
        await self.pool.submit(Submission(request, "g", [sequence], trace=trace))
        return sequence.id

    async def read(self, id: str) -> tuple[list[int], str | None]:
        """Return the committed tokens of a sequence and why it ended."""
        (snapshot,) = await self.pool.listen("g", {id: 0})
        assert snapshot.known
        return snapshot.tokens, snapshot.end and snapshot.end.reason.value

    async def ended(self, *ids: str) -> None:
        """Wait until these requests have ended."""
        waiting = set(ids)
        for _ in range(10_000):
            waiting = {id for id in waiting if (await self.read(id))[1] is None}
            if not waiting:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{waiting} never ended")


async def begun(seconds: float, new: int = 4, prompt: int = 16, **world: Any) -> tuple[World, str, asyncio.Task[None]]:
    """A world whose seat has run for `seconds` with one request for `new` tokens; the request's id; and the loop."""
    made = World(**world)
    id = await made.submit("a", prompt, new)
    loop = await made.run()
    await asyncio.sleep(seconds)
    return made, id, loop


async def stop(world: World, loop: asyncio.Task[None]) -> None:
    world.loop.stop()
    await loop
    assert world.scheduler.blocks.held == 0
