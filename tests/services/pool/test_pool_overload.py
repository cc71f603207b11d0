"""More requests than an engine can answer, by default settings: the loop and the reference model in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import pytest

from load.in_process import GATEWAY, LocalPool, Served, Setup
from load.simulation.cost import IterationTime, PerToken
from load.simulation.engine import Cost, VirtualEngine
from load.simulation.world import figures_of
from load.trace import Answer, Request
from load.workloads import sized
from services.loop.clock import run_in_virtual_time
from services.pool.limits import Limits
from services.scheduling import Knobs
from services.settings.settings import Settings

PLACES, SECONDS = 16, 60.0  # SECONDS are counted, from when the first clients have left
OUTPUTS = (16, 48)  # tokens
LIMITS = Limits(keep_ended=0.0, max_queue_wait=Settings.model_fields["max_queue_wait"].default)


class Same:
    """The time of all iterations, whatever the batch is."""

    def __init__(self, seconds: float) -> None:
        self.time = IterationTime((seconds,))

    def iteration(self, rows: object, sampled: int) -> IterationTime:
        return self.time


ITERATION = Same(0.1)
CAPACITY = PLACES / (ITERATION.time.total * sum(OUTPUTS) / 2)  # answers/s of a full batch


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of a tenant, who leave `patience` seconds after they came. `share`: of all clients."""

    tenant: str
    patience: float = inf
    share: float = 1.0


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


@contextlib.asynccontextmanager
async def crowded(cost: Cost, knobs: Knobs) -> AsyncIterator[Crowd]:
    """A pool with an engine and a living gateway; what has not ended at the end is cancelled."""
    pool = Crowd(LIMITS)

    async def stay_registered() -> None:
        call = 0
        while True:
            call += 1
            await pool.heartbeat(GATEWAY, call, {})
            await asyncio.sleep(1.0)

    async with Served(pool, [VirtualEngine(cost)], figures_of(knobs.max_batch_size * 1024, 1024), Setup(knobs)):
        alive = asyncio.create_task(stay_registered())
        yield pool
        for number in range(len(pool.answers)):
            await pool.cancel(f"{number:07}")
        alive.cancel()


# --- clients who leave ---


async def overload(population: Sequence[Clients], times: float) -> dict[str, float]:
    """Send requests at `times` the capacity. Returns whole answers and refusals per second, of each tenant."""
    begin = min([20.0, *(clients.patience for clients in population)])
    draw, visits = random.Random(0), list[tuple[Clients, float, asyncio.Task[Answer | None]]]()
    async with crowded(ITERATION, Knobs(PLACES)) as pool:
        while pool.now() < begin + SECONDS:
            [clients] = draw.choices(population, [clients.share for clients in population])
            visit = pool.visit(sized(8, draw.randint(*OUTPUTS)), clients)
            visits.append((clients, pool.now(), asyncio.create_task(visit)))
            await asyncio.sleep(1 / (times * CAPACITY))
        found = dict[str, float]()
        for clients, at, task in visits:
            answer = task.result() if task.done() else None
            whole = answer and len(answer.times) == answer.request.max_new_tokens and answer.times[-1] >= begin
            kind = "answered" if whole else "refused" if task.done() and answer is None and at >= begin else ""
            found[f"{kind}, {clients.tenant}"] = found.get(f"{kind}, {clients.tenant}", 0.0) + 1 / SECONDS
            task.cancel()
    return found


def test_engines_serve_clients_that_still_wait():
    """Once the first clients have left, ten times the rate that can be served yields almost as many answers."""
    found = run_in_virtual_time(overload([Clients("a", 20.0)], times=10))
    assert found["answered, a"] >= 0.9 * CAPACITY


def test_a_tenant_whose_clients_leave_early_does_not_refuse_those_of_another():
    hasty, patient = Clients("a", 5.0, share=0.9), Clients("b", share=0.1)
    found = run_in_virtual_time(overload([hasty, patient], times=3))
    assert found["refused, a"] > 0.0
    assert "refused, b" not in found


# --- a tenant beside another one ---


@pytest.mark.parametrize(("tenant", "ends"), [("b", [5.0, 8.0]), ("a", [6.0, 8.0])])
def test_beside_other_tenants_a_request_starts_in_the_iteration_after_its_arrival(tenant: str, ends: list[float]):
    async def main() -> list[float]:
        async with crowded(Same(1.0), Knobs(8)) as pool:

            async def ask(tenant: str, at: float, tokens: int) -> float:
                await asyncio.sleep(at)
                answer = await pool.visit(sized(4, tokens), Clients(tenant))
                assert answer is not None
                return answer.times[-1]

            asked = [ask("a", 0.0, 9), ask(tenant, 0.0, 1), ask("a", 3.5, 1), ask("a", 5.99, 1)]
            return (await asyncio.gather(*asked))[2:]

    assert run_in_virtual_time(main()) == pytest.approx(ends), "the last one comes too late for it"


LEAD, PACED = 3.0, 15  # seconds between the flood and B's first request; requests of B, one a second


async def beside(flood: int) -> float:
    """Seconds to B's first token in the median, beside `flood` requests of A at once; or, with 0, as many as B's."""
    draw = random.Random(0)
    knobs = Knobs(32, tbt_target=0.18, stretch_target=True, admission="on_demand")
    async with crowded(PerToken(0.012, 0.00035), knobs) as pool:  # a small model on two cores

        async def one(tenant: str, at: float) -> float:
            size = sized(64, draw.randint(4, 20))
            await asyncio.sleep(at)
            answer = await pool.visit(size, Clients(tenant))
            assert answer is not None, "refused"
            return answer.ttft

        sent = [0.0] * flood or [LEAD + second + draw.random() for second in range(PACED)]
        others = [asyncio.create_task(one("a", at)) for at in sent]
        first = await asyncio.gather(*(one("b", LEAD + second + draw.random()) for second in range(PACED)))
        for task in others:
            task.cancel()
    return statistics.median(first)


def test_a_tenant_beside_a_flood_waits_for_at_most_twice_as_long_as_without_it():
    assert run_in_virtual_time(beside(800)) < 2 * run_in_virtual_time(beside(0))
