"""An engine that gives back its weights and its processes, and is woken up by a request in the pool."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from engine_seats import SETTINGS, WAIT, iteration, seat
from tiny_models import make_tiny_model

from actors.engine_client import Attachment, EngineClient
from actors.engine_processes import EngineProcesses
from actors.placement import engine_actors, find_engine
from actors.seat import Seat, hold
from actors.sleeping import Sleeper
from services.errors import NotWanted
from services.loop.iteration_cost import IterationCost
from services.messages import End, NewSequence, Submission
from services.overview import SleepLevel
from services.pool.pool import RequestPool
from services.requests import SamplingParams
from services.settings.settings import Settings
from services.sleep import SleepRule

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.usefixtures("ray_cluster", "nothing_left"),
]

T = TypeVar("T")

LEASE = 3.0
NAME = "c/0"


async def until(reached: Callable[[], Awaitable[T | None]]) -> T:
    """What `reached` returns, once that is true."""
    async with asyncio.timeout(WAIT):
        while not (found := await reached()):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)
    return found


@dataclass
class Owner:
    """The owner of a seat with an engine, as `Ownership` is."""

    pool: RequestPool
    engine: EngineProcesses
    sleeper: Sleeper
    attachment: Attachment | None = None
    clients: list[EngineClient] = field(default_factory=list)

    async def attach(self) -> Attachment:
        client, self.attachment = await self.engine.open_client(self.sleeper.seat.epoch, IterationCost())
        self.clients.append(client)
        return self.attachment

    async def sleep(self) -> Attachment:
        assert self.attachment
        return await self.sleeper.sleep(self.clients[-1], self.attachment.figures, self.attach)

    async def until(self, level: SleepLevel, processes: int) -> None:
        """Wait until the engine says that it is in this state, and has so many processes, none with weights."""

        async def reached() -> bool:
            return (await self.pool.overview()).level is level and len(engine_actors()) == processes

        await until(reached)
        for actor in engine_actors().values():
            assert (await actor.status.remote()).epoch is None

    async def submit(self, request: str) -> str:
        sequence = NewSequence(f"{request}/0", [5] * 8, SamplingParams(4))
        await self.pool.submit(Submission(request, "g", [sequence]))
        return sequence.id

    async def end_of(self, id: str) -> End:
        async def end() -> End | None:
            return (await self.pool.listen("g", {id: 0}))[0].end

        return await until(end)


@asynccontextmanager
async def owner(pool: RequestPool, settings: Settings = SETTINGS, after: float = 1e6) -> AsyncIterator[Owner]:
    """An owner whose engine is awake."""
    await pool.heartbeat("g", 1, {}, ttl=1e9)
    grant = await pool.acquire(NAME, "me", LEASE)
    held, engine = Seat(NAME, 0, grant.epoch), seat(settings)

    def gauges() -> dict[str, float]:
        return {"ready": float(not sleeper.failed), "sleep": float(sleeper.level)}

    async def holding(work: Awaitable[None]) -> None:
        keeping = asyncio.create_task(hold(pool, held, LEASE, gauges))
        await work
        keeping.cancel()

    sleeper = Sleeper(pool, held, engine, SleepRule(after, SleepLevel.OFF), 0.5, LEASE, holding, gauges)
    made = Owner(pool, engine, sleeper)
    await asyncio.wait_for(made.attach(), WAIT)
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()


@pytest.mark.parametrize(("after", "level", "processes"), [(1e6, SleepLevel.COLD, 1), (0.5, SleepLevel.OFF, 0)])
async def test_a_request_wakes_an_engine_up(pool: RequestPool, after: float, level: SleepLevel, processes: int) -> None:
    async with owner(pool, after=after) as one:
        sleeping = asyncio.create_task(one.sleep())
        await one.until(level, processes)
        assert not sleeping.done()
        await one.submit("r")
        await asyncio.wait_for(sleeping, WAIT)
        assert one.sleeper.level is SleepLevel.AWAKE
        assert one.sleeper.seconds > 0
        epoch = one.sleeper.seat.epoch
        assert (await one.clients[-1].start(iteration(epoch))).tokens.keys() == {"r/0"}


@pytest.mark.parametrize(
    ("after", "level", "processes", "absent"),
    [(1e6, SleepLevel.COLD, 1, "config.json"), (0.5, SleepLevel.OFF, 0, "config.json"), (0.5, SleepLevel.OFF, 0, "")],
)
async def test_requests_for_a_model_that_cannot_be_loaded_end_with_the_reason(
    pool: RequestPool, tmp_path: Path, after: float, level: SleepLevel, processes: int, absent: str
) -> None:
    """The next request tries again. `absent`: the file, or the whole folder."""
    model = make_tiny_model(tmp_path / "model")
    async with owner(pool, SETTINGS.model_copy(update={"model": str(model)}), after=after) as one:
        sleeping = asyncio.create_task(one.sleep())
        await one.until(level, processes)
        elsewhere = (model / absent).rename(tmp_path / "elsewhere")
        ids = [await one.submit(name) for name in ("a", "b")]
        for id in ids:
            assert "The model could not be loaded: " in ((await one.end_of(id)).error or "")

        async def refused() -> bool:
            return not (await pool.overview()).ready

        await until(refused)
        assert not sleeping.done()
        elsewhere.rename(model / absent)
        await one.submit("c")
        await asyncio.wait_for(sleeping, WAIT)


async def test_a_cold_process_that_is_stopped_does_not_keep_requests_waiting(pool: RequestPool) -> None:
    async with owner(pool) as one:
        pid = one.clients[-1].status.pid
        sleeping = asyncio.create_task(one.sleep())
        await one.until(SleepLevel.COLD, 1)
        os.kill(pid, signal.SIGSTOP)
        await one.submit("r")
        await asyncio.wait_for(sleeping, WAIT)
        assert one.clients[-1].status.pid != pid


async def test_a_surplus_engine_does_not_sleep_on(pool: RequestPool) -> None:
    async with owner(pool) as one:
        await pool.engines("c", 1)
        sleeping = asyncio.create_task(one.sleep())
        await one.until(SleepLevel.COLD, 1)
        await pool._run("scale", cluster="c", engines=0)
        with pytest.raises(NotWanted):
            await asyncio.wait_for(sleeping, WAIT)
        assert find_engine("engine-0-0-a")
