"""Clients who leave when they have waited for too long, at multiples of what an engine can answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from load.in_process import GATEWAY, LocalPool, Served, Setup
from load.report import tables
from load.simulation.cost import IterationTime
from load.simulation.engine import VirtualEngine
from load.simulation.world import figures_of
from load.trace import Answer, Request
from load.workloads import sized
from services.loop.clock import run_in_virtual_time
from services.pool.limits import Limits
from services.progress import Bar
from services.scheduling import Knobs
from services.settings.settings import Settings

HELP = "answers to clients who leave when they have waited for too long"
PLACES, ITERATION = 16, IterationTime((0.1,))  # whatever the batch is
PROMPT, OUTPUTS = 8, (16, 48)  # tokens
CAPACITY = PLACES / (ITERATION.total * sum(OUTPUTS) / 2)  # answers/s of a full batch
LONGEST = 20.0  # seconds until the first departure at the latest
SECONDS = 60.0  # that are counted, from when the first clients have left
TIMES = (1.0, 2.0, 10.0)
LIMITS = Limits(keep_ended=0.0, max_queue_wait=Settings.model_fields["max_queue_wait"].default)


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of a tenant, who leave `patience` seconds after they came. `share`: of all clients."""

    tenant: str
    patience: float
    share: float = 1.0


POPULATIONS = {
    "who leave after 20 s": [Clients("a", 20.0)],
    "who leave after 5 s": [Clients("a", 5.0)],
    "who stay": [Clients("a", inf)],
    "half of whom leave after 5 s, of one tenant": [Clients("a", 5.0), Clients("a", inf)],
    "of a tenant who leave after 5 s, and of one who stay": [Clients("a", 5.0), Clients("b", inf)],
}


class Cost:
    def iteration(self, rows: object, sampled: int) -> IterationTime:
        return ITERATION


class Crowd(LocalPool):
    """A pool whose clients wait at a gateway, and leave."""

    async def visit(self, request: Request, clients: Clients) -> Answer | None:
        """Ask and wait for the answer, or leave before its end. Returns None if it is refused."""
        answer, ended, submission = self._begun(request)
        if (await self.submit(replace(submission, tenant=clients.tenant))).refused:
            return None
        await asyncio.wait([ended], timeout=None if clients.patience == inf else clients.patience)
        if not ended.done():
            await self.cancel(submission.request)
        return answer

    async def stay_registered(self) -> None:
        """Keep the gateway of the clients alive."""
        call = 0
        while True:
            call += 1
            await self.heartbeat(GATEWAY, call, {})
            await asyncio.sleep(1.0)


def run(out: Path | None) -> str:
    rows: dict[str, dict[str, float]] = {}
    for name, population in Bar(POPULATIONS.items(), unit="populations"):
        for times in TIMES:
            rows[f"{times:g} times, {name}"] = run_in_virtual_time(overload(population, times))
    about = (
        f"Answers per second of {CAPACITY:g} that the engine can give, in the {SECONDS:g} s after the first departure"
    )
    return "\n\n".join(tables({about: rows}))


async def overload(population: Sequence[Clients], times: float) -> dict[str, float]:
    """Send requests at `times` the capacity. Returns whole answers and refusals per second, also of each tenant."""
    begin = min([LONGEST, *(clients.patience for clients in population)])
    pool, draw, setup = Crowd(LIMITS), random.Random(0), Setup(Knobs(PLACES))
    visits: list[tuple[Clients, float, asyncio.Task[Answer | None]]] = []
    async with Served(pool, [VirtualEngine(Cost())], figures_of(PLACES * 512, 512), setup):
        alive = asyncio.create_task(pool.stay_registered())
        while pool.now() < begin + SECONDS:
            [clients] = draw.choices(population, [clients.share for clients in population])
            visit = pool.visit(sized(PROMPT, draw.randint(*OUTPUTS)), clients)
            visits.append((clients, pool.now(), asyncio.create_task(visit)))
            await asyncio.sleep(1 / (times * CAPACITY))
        found = dict.fromkeys(("answered", "refused"), 0.0)
        for clients, at, task in visits:
            answer = task.result() if task.done() else None
            whole = answer and len(answer.times) == answer.request.max_new_tokens and answer.times[-1] >= begin
            kind = "answered" if whole else "refused" if task.done() and answer is None and at >= begin else ""
            if kind:
                found[kind] += 1 / SECONDS
                found[f"{kind}, {clients.tenant}"] = found.get(f"{kind}, {clients.tenant}", 0.0) + 1 / SECONDS
        for _, _, task in visits:
            task.cancel()
        for answer_id in range(len(pool.answers)):
            await pool.cancel(f"{answer_id:07}")
        alive.cancel()
    return found
