"""How many engines one pool server carries, and how many gateways they need."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gateway.pool_client.event_reader import PAUSE
from load.in_process import Served, Setup
from load.report import quantile, tables
from load.simulation.cost import IterationTime, RequestState
from load.simulation.engine import VirtualEngine
from load.simulation.pool import Price, PricedPool, Users
from load.simulation.world import figures_of
from load.workloads import sized
from services.loop.clock import run_in_virtual_time
from services.progress import Bar
from services.scheduling import Knobs

HELP = "where one pool server saturates"
ENGINES = (1, 5, 10, 15, 20, 30)
PROMPT = 256
OUTPUTS = (1, 255)  # tokens, uniform
SPREAD = 0.2  # of an iteration's time, in both directions
# seconds of a gateway's processor, of runs with one shard (docs/measurements.md): each second under load, whatever it
# answers; a read of events; a chunk of a stream, with one token
SECOND, READ, CHUNK = 0.044, 0.27e-3, 28e-6


@dataclass(frozen=True, slots=True)
class Load:
    """Enough users to keep all engines full; each sends the next request as soon as it is answered."""

    iteration: float = 0.020  # mean seconds, independent of the batch
    running: int = 64  # requests of an engine
    waiting: float = 0.25  # users beyond those that run, as a share
    warm_up: float = 2.0  # seconds
    seconds: float = 2.0  # of the measurement; more if there are few engines

    def gateways(self, engines: int) -> int:
        """How many gateways these engines need, each a whole processor: a chunk for each token."""
        left = 1 - SECOND - READ / PAUSE
        return math.ceil(CHUNK * engines * self.running / self.iteration / left)

    def measured(self, engines: int) -> float:
        return self.seconds * min(10.0, max(1.0, 20.0 / engines))


class Jittered:
    """A cost of about the same time for all iterations, so that engines do not run in step. Counts the iterations and
    the tokens that they sample."""

    def __init__(self, seconds: float) -> None:
        self.iterations = self.sampled = 0
        self._seconds = seconds
        self._draws = random.Random(1)

    def iteration(self, rows: list[RequestState], sampled: int) -> IterationTime:
        self.iterations += 1
        self.sampled += sampled
        return IterationTime((self._seconds * self._draws.uniform(1 - SPREAD, 1 + SPREAD),))


def run(out: Path | None) -> str:
    return report(Load(), ENGINES)


def report(load: Load, engines: Sequence[int]) -> str:
    rows = {}
    with Bar(desc="plan", total=sum(engines), unit="engines") as bar:  # the time grows with the number of engines
        for count in engines:
            rows[f"{count} engines"] = carry(count, load)
            bar.update(count)
    about = (
        f"Engines of {load.running} running requests and {load.iteration * 1e3:.0f} ms an iteration (± {SPREAD:.0%}), "
        f"always asked for {load.waiting:.0%} more than they run; {PROMPT} tokens in, {OUTPUTS[0]} to {OUTPUTS[1]} out"
    )
    return "\n\n".join(tables({about: rows}))


def carry(engines: int, load: Load) -> dict[str, float]:
    """Simulate `engines` engines on one pool; returns its figures. Shares are percent, times ms."""
    return run_in_virtual_time(_carry(engines, load))


async def _carry(engines: int, load: Load) -> dict[str, float]:
    gateways = load.gateways(engines)
    pool, cost, sizes = PricedPool(Price(), gateways), Jittered(load.iteration), random.Random(0)
    several, setup = [VirtualEngine(cost) for _ in range(engines)], Setup(Knobs(load.running))
    users = round(engines * load.running * (1 + load.waiting))
    async with (
        Served(pool, several, figures_of(load.running * 512, 512), setup),
        Users(pool, users, lambda: sized(PROMPT, sizes.randint(*OUTPUTS))),
    ):
        await asyncio.sleep(load.iteration)
        pool.priced = True
        await asyncio.sleep(load.warm_up)
        begin, seconds = load.iteration + load.warm_up, load.measured(engines)
        iterations, sampled, busy = cost.iterations, cost.sampled, pool.busy
        await asyncio.sleep(seconds)
        iterations, sampled, busy = cost.iterations - iterations, cost.sampled - sampled, pool.busy - busy

    def counts(at: float) -> bool:
        return begin <= at < begin + seconds

    pairs = [pair for answer in pool.answers for pair in pairwise(answer.times)]
    gaps = [after - before for before, after in pairs if after > before and counts(after)]  # one commit: no gap
    exchanges = [taken for at, taken in pool.exchanges if counts(at)]
    return {
        "gateways": gateways,
        "server busy, %": 100 * busy / seconds,
        "exchange, ms": 1e3 * statistics.mean(exchanges),
        "p99": 1e3 * quantile(exchanges, 0.99),
        "places filled, %": 100 * sampled / (iterations * load.running),
        "tokens/s": sum(counts(at) for answer in pool.answers for at in answer.times) / seconds,
        "between commits, p99, ms": 1e3 * quantile(gaps, 0.99),
    }
