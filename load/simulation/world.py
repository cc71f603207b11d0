"""A simulated Orca: EngineLoops with their schedulers on one pool, built from the same parts as a real one.

This is the one place of the simulator that creates schedulers and loops. It runs under `run_in_virtual_time`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from load.recording import Recording
from load.simulation.engine import Cost, VirtualEngine
from load.simulation.pool import SimulatedPool
from load.trace import Answer, Request, run_trace
from services.loop.clock import RealClock, run_in_virtual_time
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.local_engine import LocalSeat
from services.messages import EngineFigures
from services.metrics import Counters
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

LEASE = 60.0
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a scheduler, the same for all engines of a run."""

    max_batch_size: int
    num_slots: int
    max_model_len: int
    batches_in_flight: int = 1
    token_budget: int | None = None
    tbt_target: float | None = None
    stretch_target: bool = False
    request_level: bool = False


class World:
    """Engines on one pool. The end of `async with` stops the engines, once all requests have ended. `recording` notes
    their iterations."""

    def __init__(
        self, pool: SimulatedPool, cost: Cost, policy: Policy, engines: int = 1, recording: Recording | None = None
    ) -> None:
        self.pool = pool
        self.engines = [VirtualEngine(cost) for _ in range(engines)]
        self._policy = policy
        self._recording = recording
        self._loops: list[EngineLoop] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> World:
        for index, engine in enumerate(self.engines):
            self._loops.append(await self._loop(f"simulation/{index}", engine))
        self._tasks = [asyncio.create_task(loop.run()) for loop in self._loops]
        return self

    async def __aexit__(self, *error: object) -> None:
        for loop in self._loops:
            loop.stop()
        await asyncio.gather(*self._tasks)

    async def _loop(self, name: str, engine: VirtualEngine) -> EngineLoop:
        epoch = (await self.pool.acquire(name, name, LEASE)).epoch  # a fresh pool's seat is free
        seat, counters, clock = LocalSeat(name, epoch), Counters(), RealClock()
        scheduler, figures = self._scheduler(epoch), self._figures()
        observers = [self._recording.recorder(name, epoch, scheduler)] if self._recording else []
        return EngineLoop(
            self.pool,
            scheduler,
            engine,
            clock,
            seat,
            LEASE,
            figures,
            counters,
            IterationCost(),
            observers=observers,
        )

    def _scheduler(self, epoch: str) -> Scheduler:
        policy = self._policy
        kind = RequestLevelScheduler if policy.request_level else Scheduler
        knobs = Knobs(
            max_batch_size=policy.max_batch_size,
            token_budget=policy.token_budget,
            tbt_target=policy.tbt_target,
            stretch_target=policy.stretch_target,
            batches_in_flight=policy.batches_in_flight,
        )
        return kind(epoch=epoch, figures=self._figures(), knobs=knobs, now=RealClock().now)

    def _figures(self) -> EngineFigures:
        num_blocks = self._policy.num_slots // BLOCK_SIZE
        return EngineFigures("simulation", self._policy.max_model_len, num_blocks, BLOCK_SIZE, 1 << 16, "simulation")


def run_simulated(
    requests: Sequence[Request], cost: Cost, policy: Policy, recording: Recording | None = None
) -> list[Answer]:
    """Run `requests` on one engine, to their ends."""
    return run_in_virtual_time(_run(requests, cost, policy, recording))


async def _run(requests: Sequence[Request], cost: Cost, policy: Policy, recording: Recording | None) -> list[Answer]:
    pool = SimulatedPool()
    async with recording or contextlib.nullcontext(), World(pool, cost, policy, recording=recording):
        return await run_trace(pool, requests)


@dataclass(frozen=True, slots=True)
class Window:
    """The seconds of a run in which it is measured, for a run that has no end of its own."""

    begin: float
    end: float

    def __contains__(self, at: float) -> bool:
        return self.begin <= at < self.end

    def token_throughput(self, answers: list[Answer]) -> float:
        """Output tokens per second."""
        return sum(at in self for answer in answers for at in answer.times) / (self.end - self.begin)

    def gaps(self, answers: list[Answer]) -> list[float]:
        """Times between tokens."""
        pairs = (pair for answer in answers for pair in itertools.pairwise(answer.times))
        return [later - earlier for earlier, later in pairs if later in self]


def percentile(values: list[float], percent: float) -> float:
    """The smallest of `values` that `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]
