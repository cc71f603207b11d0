"""Systems in this process that answer requests: a pool's reference model, schedulers and their loops around engines.

Around a real engine they run in real time, without HTTP, Redis and Ray; around one that only costs time, on virtual
time (`load.simulation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Protocol

from load.reference.pool import ReferencePool
from load.reference.state import LoopClock
from load.trace import Answer, Request, Run, run_trace
from services.loop.clock import now
from services.loop.engine_loop import Engine as LoopEngine
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.local_engine import LocalEngine, LocalSeat
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
from services.pool.limits import Limits
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler
from services.started import Started

if TYPE_CHECKING:
    from load.recording import Recording  # needs orjson, which a machine for benches may lack

GATEWAY = "in process"
LEASE = 60.0
# nobody reads an ended request again
NO_LIMITS = Limits(max_waiting=1 << 60, max_bytes=1 << 60, keep_ended=1.0)


class Engine(Protocol):
    """`services.engine.Engine` or `NullEngine`."""

    @property
    def figures(self) -> EngineFigures: ...
    def reset(self, epoch: str) -> None: ...
    def start(self, iteration: Iteration) -> Started[IterationResult]: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """How requests are run."""

    knobs: Knobs
    scheduler: type[Scheduler] = Scheduler


class LocalPool(ReferencePool):
    """A system that answers requests. A user gets a token when it is committed, as in the real pool."""

    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        super().__init__(LoopClock(), limits)
        self.answers: list[Answer] = []  # in order of submission, also those that have not ended
        self._open: dict[str, tuple[Answer, asyncio.Future[None]]] = {}
        self._began = self._clock.now()

    def now(self) -> float:
        return self._clock.now() - self._began

    async def ask(self, request: Request) -> Answer:
        """Raises RuntimeError if the request ends with an error, and what its loop raised."""
        answer, ended, submission = self._begun(request)
        reply = await self.submit(replace(submission, background=True))
        assert reply.refused is None, f"{reply.refused = }"
        await self.unregister(GATEWAY)  # no gateway reads events: `exchange` sees the commits as they come in
        await ended
        return answer

    def _begun(self, request: Request) -> tuple[Answer, asyncio.Future[None], Submission]:
        """The answer of a request, what is done once it has ended, and the submission."""
        answer, ended = Answer(request, self.now()), asyncio.get_running_loop().create_future()
        id = f"{len(self.answers):07}"
        self.answers.append(answer)
        self._open[f"{id}/0"] = answer, ended
        sampling = SamplingParams(request.max_new_tokens, temperature=0.0, ignore_eos=True)
        return answer, ended, Submission(id, GATEWAY, [NewSequence(f"{id}/0", request.prompt, sampling)])

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        reply = await super().exchange(exchange)
        assert not reply.foreign, f"{reply.foreign = }"
        assert not reply.have, f"{reply.have = }"
        now = self.now()
        for commit in exchange.commits:
            answer, ended = self._open[commit.id]
            answer.tokens += commit.tokens
            answer.times += [now] * len(commit.tokens)
            if commit.end:
                del self._open[commit.id]
                if commit.end.error and not ended.done():
                    ended.set_exception(RuntimeError(f"{commit.id}: {commit.end.error}"))
                elif not ended.done():
                    ended.set_result(None)
        return reply

    def fail(self, serving: asyncio.Task[None]) -> None:
        """A loop has ended: raise its error in every `ask` that still waits."""
        if not serving.cancelled() and (error := serving.exception()):
            for _, ended in self._open.values():
                if not ended.done():
                    ended.set_exception(error)


class Served:
    """Schedulers and loops for `engines` on one pool, within `async with`; its end waits for all requests.

    `begin` is called with each epoch; `recording` notes the iterations.
    """

    def __init__(
        self,
        pool: LocalPool,
        engines: Sequence[LoopEngine],
        figures: EngineFigures,
        setup: Setup,
        cost: Callable[[], IterationCost] = IterationCost,
        begin: Callable[[str], None] = lambda epoch: None,
        recording: Recording | None = None,
    ) -> None:
        self._pool, self._engines, self._figures, self._setup = pool, engines, figures, setup
        self._cost, self._begin, self._recording = cost, begin, recording
        self._loops: list[EngineLoop] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Served:
        for index, engine in enumerate(self._engines):
            self._loops.append(await self._loop(f"simulation/{index}", engine))
        self._tasks = [asyncio.create_task(loop.run()) for loop in self._loops]
        for task in self._tasks:
            task.add_done_callback(self._pool.fail)
        return self

    async def __aexit__(self, *error: object) -> None:
        for loop in self._loops:
            loop.stop()
        await asyncio.gather(*self._tasks)

    async def _loop(self, name: str, engine: LoopEngine) -> EngineLoop:
        epoch = (await self._pool.acquire(name, name, LEASE)).epoch  # a fresh pool's seat is free
        self._begin(epoch)
        figures = self._figures
        scheduler = self._setup.scheduler(epoch=epoch, figures=figures, knobs=self._setup.knobs, now=now)
        observers = [self._recording.recorder(name, epoch, scheduler)] if self._recording else []
        seat, counters = LocalSeat(name, epoch), Counters()
        return EngineLoop(
            self._pool, scheduler, engine, seat, LEASE, figures, counters, self._cost(), observers=observers
        )


def run_in_process(engine: Engine, requests: Sequence[Request], setup: Setup) -> Run:
    """Run `requests` on `engine` in real time; raises what the engine raises."""
    return asyncio.run(_run(engine, requests, setup))


async def _run(engine: Engine, requests: Sequence[Request], setup: Setup) -> Run:
    pool, local = LocalPool(), LocalEngine(engine)
    try:
        async with Served(pool, [local], engine.figures, setup, _Patience, engine.reset):
            return Run(await run_trace(pool, requests))
    finally:
        local.close()


class _Patience(IterationCost):
    """No limit to the time of an iteration: this engine cannot be restarted, and other work may slow the machine."""

    def limit(self, iteration: Iteration) -> float:
        return inf
