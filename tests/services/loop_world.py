"""A world for the loop on virtual time: a pool whose calls take time and can fail, an engine that only waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import wraps

from services.clock import RealClock, run_in_virtual_time
from services.errors import EngineLost, PoolUnavailable
from services.loop import EngineLoop
from services.messages import (
    EngineFigures,
    Exchange,
    ExchangeReply,
    Iteration,
    IterationResult,
    NewSequence,
    Submission,
)
from services.pool.reference import ReferencePool
from services.requests import SamplingParams
from services.scheduling import Scheduler
from services.telemetry import Counters

SEAT = "c/0"
BLOCK = 16
EOS = 2
WORD = 7


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on virtual time."""

    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        run_in_virtual_time(main())

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


class Line:
    """The way to the pool: each call takes `seconds`; while `down`, requests or replies are lost."""

    def __init__(self, pool: ReferencePool, seconds: float) -> None:
        self.pool = pool
        self.seconds = seconds
        self.down: str = ""  # "": works; "request": nothing arrives; "reply": it is done, the answer is lost
        self.sent: list[tuple[float, Exchange]] = []
        self.replies: list[tuple[float, ExchangeReply]] = []
        self.bells: list[float] = []

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        self.sent.append((now(), exchange))
        down = self.down
        await asyncio.sleep(self.seconds)
        if down == "request":
            raise PoolUnavailable("no way to the pool")
        reply = await self.pool.exchange(exchange)
        if down == "reply":
            raise PoolUnavailable("no way back from the pool")
        self.replies.append((now(), reply))
        return reply

    async def wait_bell(self, seat: str, timeout: float) -> None:
        self.bells.append(now())
        if self.down:
            raise PoolUnavailable("no way to the pool")
        await self.pool.wait_bell(seat, timeout)


@dataclass
class WaitingEngine:
    """Takes `seconds(iteration)` for each; samples `token(id)`; dies in iteration `dies`."""

    seconds: Callable[[Iteration], float]
    token: Callable[[str], int] = lambda id: WORD
    dies: int = 0
    ran: list[tuple[float, Iteration]] = field(default_factory=list)

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        self.ran.append((now(), iteration))
        return asyncio.ensure_future(self._run(iteration))

    async def _run(self, iteration: Iteration) -> IterationResult:
        await asyncio.sleep(self.seconds(iteration))
        if iteration.step == self.dies:
            raise EngineLost("it died")
        tokens = {id: self.token(id) for id in iteration.scheduled}
        return IterationResult(iteration.epoch, iteration.step, tokens)

    def batches(self) -> list[dict[str, int]]:
        return [iteration.scheduled for _, iteration in self.ran]


@dataclass
class Seat:
    name: str
    epoch: str
    call: int = 0


class World:
    """One pool, one seat, one engine. Made inside the virtual event loop."""

    def __init__(
        self,
        kind: type[Scheduler] = Scheduler,
        batch: int = 4,
        blocks: int = 1000,
        lease: float = 5.0,
        iteration: Callable[[Iteration], float] = lambda iteration: 0.1,
        exchange: float = 0.001,
    ) -> None:
        self.kind, self.batch, self.lease = kind, batch, lease
        self.figures = EngineFigures("m", 4096, blocks, BLOCK, 100, "n")
        self.pool = ReferencePool(RealClock())
        self.line = Line(self.pool, exchange)
        self.engine = WaitingEngine(iteration)
        self.counters = Counters()

    async def take_seat(self, owner: str = "me", dead_epoch: str | None = None) -> EngineLoop:
        """Acquire the seat; the loop of its new owner."""
        grant = await self.pool.acquire(SEAT, owner, self.lease, dead_epoch)
        assert grant.granted
        self.epoch = epoch = grant.epoch
        self.scheduler = self.kind(
            epoch=epoch,
            num_blocks=self.figures.num_blocks,
            block_size=BLOCK,
            max_model_len=self.figures.max_model_len,
            max_batch_size=self.batch,
            eos_token_ids=[EOS],
        )
        seat = Seat(SEAT, epoch)
        self.loop = EngineLoop(
            self.line, self.scheduler, self.engine, RealClock(), seat, self.lease, self.figures, self.counters
        )
        return self.loop

    async def submit(self, request: str, prompt: int = 16, new: int = 4) -> str:
        """One sequence; its id."""
        sequence = NewSequence(f"{request}/0", [WORD] * prompt, SamplingParams(new))
        await self.pool.submit(Submission(request, "g", [sequence]))
        return sequence.id

    async def read(self, id: str) -> tuple[list[int], str | None]:
        """The committed tokens of a sequence and why it ended."""
        (snapshot,) = await self.pool.attach("g", {id: 0})
        assert snapshot.known
        return snapshot.tokens, snapshot.end and snapshot.end.reason.value

    async def ended(self, *ids: str) -> None:
        """Wait until these have ended."""
        waiting = set(ids)
        for _ in range(10_000):
            waiting = {id for id in waiting if (await self.read(id))[1] is None}
            if not waiting:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{waiting} never ended")


async def stop(world: World, loop: asyncio.Task[None]) -> None:
    world.loop.stop()
    await loop
    assert world.scheduler.blocks.held == 0
