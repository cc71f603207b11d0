"""A trace in this process: the engine, the scheduler and its loop, without HTTP, Redis or Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from load.reference.pool import ReferencePool
from load.trace import Answer, Request, Run, run_trace
from services.loop.clock import RealClock
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.local_engine import LocalEngine, LocalSeat
from services.messages import EngineFigures, Iteration, IterationResult, NewSequence, Submission
from services.metrics import Counters
from services.pool.limits import Limits
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler

SEAT, GATEWAY = "bench/0", "bench"
LEASE = 60.0
DAY = 86_400.0


class Engine(Protocol):
    """`services.engine.Engine` or `NullEngine`."""

    @property
    def figures(self) -> EngineFigures: ...
    def reset(self, epoch: str) -> None: ...
    def run(self, iteration: Iteration) -> IterationResult: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """How requests are run."""

    knobs: Knobs
    scheduler: type[Scheduler] = Scheduler


def run_in_process(engine: Engine, requests: Sequence[Request], setup: Setup) -> Run:
    """Run `requests` on `engine`; raises what the engine raises."""
    return asyncio.run(_run(engine, requests, setup))


async def _run(engine: Engine, requests: Sequence[Request], setup: Setup) -> Run:
    server = InProcess(engine, setup)
    await server.start()
    try:
        return Run(await run_trace(server, requests))
    finally:
        await server.stop()


class InProcess:
    """A pool, a scheduler and its loop around an engine: a system that answers requests."""

    def __init__(self, engine: Engine, setup: Setup) -> None:
        self._clock = RealClock()
        self._pool = ReferencePool(self._clock, Limits())
        self._engine, self._setup = engine, setup
        self._answers: dict[str, tuple[Answer, asyncio.Future[None]]] = {}
        self._number = 0

    async def start(self) -> None:
        """Start to serve; the trace begins."""
        epoch = (await self._pool.acquire(SEAT, "bench", LEASE)).epoch  # a fresh pool's seat is free
        await self._pool.heartbeat(GATEWAY, 1, {}, ttl=DAY)
        engine, setup = self._engine, self._setup
        engine.reset(epoch)
        self._local = LocalEngine(engine)
        self._loop = EngineLoop(
            self._pool,
            setup.scheduler(epoch=epoch, figures=engine.figures, knobs=setup.knobs),
            self._local,
            self._clock,
            LocalSeat(SEAT, epoch),
            LEASE,
            engine.figures,
            Counters(),
            _Patience(),
        )
        self._began = self._clock.now()
        self._serving = asyncio.create_task(self._loop.run())
        self._serving.add_done_callback(self._fail_all)
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        self._loop.stop()
        try:
            await self._serving
        finally:
            self._reading.cancel()
            self._local.close()

    def now(self) -> float:
        return self._clock.now() - self._began

    async def ask(self, request: Request) -> Answer:
        id, ended = f"{self._number:06}", asyncio.get_running_loop().create_future()
        self._number += 1
        answer = Answer(request, self.now())
        self._answers[f"{id}/0"] = answer, ended
        sampling = SamplingParams(request.max_new_tokens, temperature=0.0, ignore_eos=True)
        sequence = NewSequence(f"{id}/0", request.prompt, sampling)
        reply = await self._pool.submit(Submission(id, GATEWAY, [sequence]))
        assert reply.refused is None, f"the pool is full: {reply.refused}"
        await ended
        return answer

    async def _read(self) -> None:
        cursor = "0"
        while True:
            cursor, events = await self._pool.read_events(GATEWAY, cursor, timeout=10.0)
            now = self.now()
            for event in events:
                answer, ended = self._answers[event.id]
                if event.token is not None:
                    answer.tokens.append(event.token)
                    answer.times.append(now)
                elif event.end and event.end.error:
                    ended.set_exception(RuntimeError(f"{event.id}: {event.end.error}"))
                else:
                    ended.set_result(None)

    def _fail_all(self, serving: asyncio.Task[None]) -> None:
        """The loop has ended: raise its error in every `ask` that still waits."""
        if not serving.cancelled() and (error := serving.exception()):
            for _, ended in self._answers.values():
                if not ended.done():
                    ended.set_exception(error)


class _Patience(IterationCost):
    """No limit to the time of an iteration: this engine cannot be restarted, and other work may slow the machine."""

    def limit(self, iteration: Iteration) -> float:
        return inf
