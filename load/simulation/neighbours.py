"""A tenant that sends a request now and then, beside another one that floods the server."""

from __future__ import annotations

import asyncio
import random
import statistics
from math import inf
from pathlib import Path

from load.in_process import Served, Setup
from load.report import tables
from load.simulation.cost import PerToken
from load.simulation.engine import VirtualEngine
from load.simulation.overload import LIMITS, Clients, Crowd
from load.simulation.world import figures_of
from load.workloads import sized
from services.loop.clock import run_in_virtual_time
from services.scheduling import Knobs

HELP = "first tokens of a tenant beside another one's flood"
FIXED, TOKEN = 0.012, 0.00035  # seconds of an iteration, and of each token in it: a small model on two cores
PROMPT, OUTPUTS, PLACES = 64, (4, 20), 32
FLOOD, PACED = 2000, 25  # requests of A at once, and of B, one a second
LEAD = 3.0  # seconds between the flood and B's first request
KNOBS = Knobs(PLACES, tbt_target=0.18, stretch_target=True, admission="on_demand")


def run(out: Path | None) -> str:
    quiet, flooded = beside(0), beside(FLOOD)
    for row in (quiet, flooded):
        row["times the first"] = row["median"] / quiet["median"]
    rows = {"A sends as much as B": quiet, f"A sends {FLOOD:,} requests at once": flooded}
    return "\n\n".join(tables({"Seconds to B's first token, and tokens per second of A": rows}))


def beside(flood: int) -> dict[str, float]:
    """Simulate B beside `flood` requests of A at once; or, with 0, beside as many as B sends."""
    return run_in_virtual_time(_beside(flood))


async def _beside(flood: int) -> dict[str, float]:
    pool, draw, a, b = Crowd(LIMITS), random.Random(0), Clients("a", inf), Clients("b", inf)

    async def one(clients: Clients, at: float) -> float:
        size = sized(PROMPT, draw.randint(*OUTPUTS))
        await asyncio.sleep(at)
        answer = await pool.visit(size, clients)
        assert answer is not None, "refused"
        return answer.ttft

    async with Served(pool, [VirtualEngine(PerToken(FIXED, TOKEN))], figures_of(PLACES * 1024, 1024), Setup(KNOBS)):
        alive = asyncio.create_task(pool.stay_registered())
        sent = [0.0] * flood or [LEAD + second + draw.random() for second in range(PACED)]
        others = [asyncio.create_task(one(a, at)) for at in sent]
        first = await asyncio.gather(*(one(b, LEAD + second + draw.random()) for second in range(PACED)))
        seconds, tokens = pool.now(), sum(len(answer.times) for answer in pool.answers)
        for number in range(len(pool.answers)):
            await pool.cancel(f"{number:07}")
        for task in (alive, *others):
            task.cancel()
    return {"median": statistics.median(first), "longest": max(first), "tokens/s": tokens / seconds}
