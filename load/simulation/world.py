"""A simulated Orca: EngineLoops with their schedulers on one pool, put together as everywhere else.

The one place of the simulator that makes schedulers and loops. It runs under `run_in_virtual_time`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from load.simulation.engine import Cost, VirtualEngine
from load.simulation.outcome import Served
from load.simulation.pool import SimulatedPool
from load.simulation.traces import Arrival
from services.loop.clock import RealClock, run_in_virtual_time
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.messages import EngineFigures
from services.metrics import Counters
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

LEASE = 60.0
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Policy:
    """What a scheduler is told, the same for all engines of a run."""

    max_batch_size: int
    num_slots: int
    max_model_len: int
    batches_in_flight: int = 1
    token_budget: int | None = None
    request_level: bool = False


@dataclass(slots=True)
class _Seat:
    name: str
    epoch: str
    call: int = 0


class World:
    """Engines on one pool. Use as `async with`: leaving it stops the engines, once all requests have ended."""

    def __init__(self, pool: SimulatedPool, cost: Cost, policy: Policy, engines: int = 1) -> None:
        self.pool = pool
        self.engines = [VirtualEngine(cost) for _ in range(engines)]
        self._policy = policy
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
        seat, counters, clock = _Seat(name, epoch), Counters(), RealClock()
        scheduler, figures = self._scheduler(epoch), self._figures()
        return EngineLoop(self.pool, scheduler, engine, clock, seat, LEASE, figures, counters, IterationCost())

    def _scheduler(self, epoch: str) -> Scheduler:
        policy = self._policy
        kind = RequestLevelScheduler if policy.request_level else Scheduler
        knobs = Knobs(
            max_batch_size=policy.max_batch_size,
            token_budget=policy.token_budget,
            batches_in_flight=policy.batches_in_flight,
        )
        return kind(epoch=epoch, figures=self._figures(), knobs=knobs, now=RealClock().now)

    def _figures(self) -> EngineFigures:
        num_blocks = self._policy.num_slots // BLOCK_SIZE
        return EngineFigures("simulation", self._policy.max_model_len, num_blocks, BLOCK_SIZE, 1 << 16, "simulation")


def serve_trace(trace: list[Arrival], cost: Cost, policy: Policy) -> list[Served]:
    """`trace` on one engine, to its end."""
    return run_in_virtual_time(_serve_trace(trace, cost, policy))


async def _serve_trace(trace: list[Arrival], cost: Cost, policy: Policy) -> list[Served]:
    pool = SimulatedPool()
    async with World(pool, cost, policy):
        asked = []
        for arrival in trace:
            if (wait := arrival.at - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(wait)
            asked.append(await pool.ask(arrival.size))
        await asyncio.gather(*asked)
    return pool.served
