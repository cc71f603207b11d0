"""A trace through EngineLoop in this process: the engine and the scheduler alone, without HTTP, Redis or Ray."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

from load.workloads import Job
from services.clock import RealClock
from services.iteration_cost import IterationCost
from services.local_engine import LocalEngine
from services.loop import EngineLoop
from services.messages import EngineFigures, Iteration, IterationResult, NewSequence, Submission
from services.pool.reference import ReferencePool
from services.requests import SamplingParams
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler
from services.telemetry import Counters

SEAT = "bench/0"
LEASE = 60.0
DAY = 86_400.0
POLICIES = {"iteration": Scheduler, "request": RequestLevelScheduler}


class Engine(Protocol):
    """`services.engine.Engine` or `NullEngine`."""

    @property
    def figures(self) -> EngineFigures: ...
    def reset(self, epoch: str) -> None: ...
    def run(self, iteration: Iteration) -> IterationResult: ...


@dataclass(frozen=True, slots=True)
class Run:
    """What a trace took, from its submission to its last token, and the tokens of each job."""

    iterations: int
    seconds: float
    outputs: list[list[int]]


@dataclass(slots=True)
class _Seat:
    name: str
    epoch: str
    call: int = 0


async def run_trace(
    engine: Engine, jobs: list[Job], max_batch_size: int, policy: Literal["iteration", "request"] = "iteration"
) -> Run:
    """Submit all `jobs` at once and wait for all; raises whatever the engine raises."""
    clock = RealClock()
    pool = ReferencePool(clock)
    loop, local = await _loop(engine, pool, clock, max_batch_size, policy)
    await pool.heartbeat("bench", 1, {}, ttl=DAY)
    started = clock.now()
    ids = [await _submit(pool, number, job) for number, job in enumerate(jobs)]
    serving = asyncio.create_task(loop.run())
    reading = asyncio.create_task(_all_ended(pool, len(jobs)))
    try:
        await asyncio.wait([serving, reading], return_when=asyncio.FIRST_COMPLETED)
        seconds = clock.now() - started
        loop.stop()
        await serving
        await reading
    finally:
        reading.cancel()
        local.close()
    snapshots = await pool.attach("bench", dict.fromkeys(ids, 0))
    iterations = int((await pool.overview()).counters["orca:iterations"])
    return Run(iterations, seconds, [snapshot.tokens for snapshot in snapshots])


async def _loop(
    engine: Engine, pool: ReferencePool, clock: RealClock, max_batch_size: int, policy: str
) -> tuple[EngineLoop, LocalEngine]:
    epoch = (await pool.acquire(SEAT, "bench", LEASE)).epoch  # a fresh pool's seat is free
    engine.reset(epoch)
    figures = engine.figures
    scheduler = POLICIES[policy](
        epoch=epoch,
        figures=figures,
        knobs=Knobs(max_batch_size=max_batch_size),
    )
    local = LocalEngine(engine)
    return EngineLoop(
        pool, scheduler, local, clock, _Seat(SEAT, epoch), LEASE, figures, Counters(), IterationCost()
    ), local


async def _submit(pool: ReferencePool, number: int, job: Job) -> str:
    sampling = SamplingParams(job.max_new_tokens, temperature=0.0, ignore_eos=True)
    sequence = NewSequence(f"{number:06}/0", job.prompt, sampling)
    await pool.submit(Submission(f"{number:06}", "bench", [sequence]))
    return sequence.id


async def _all_ended(pool: ReferencePool, count: int) -> None:
    cursor = "0"
    while count:
        cursor, events = await pool.read_events("bench", cursor, timeout=10.0)
        count -= sum(event.end is not None for event in events)
