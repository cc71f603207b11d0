"""EngineLoop and slow engines: a stuck one is abandoned, a busy one never."""

from __future__ import annotations

import asyncio

import pytest

from services.errors import EngineStuck
from services.loop.clock import now
from services.messages import Iteration, IterationResult
from tests.services.loop.world import SEAT, WORD, WaitingEngine, World, stop, virtual


def cost(iteration: Iteration) -> float:
    """The time of an iteration on a slow machine: 0.05 s, 20 ms per token, and attention."""
    pairs = sum(len(new.token_ids) ** 2 for new in iteration.new)
    return 0.05 + 0.02 * sum(iteration.scheduled.values()) + 1e-5 * pairs


@virtual
async def test_a_stuck_engine_is_abandoned_after_ten_seconds() -> None:
    world = World(iteration=cost)
    world.engine.hangs = 6
    id = await world.submit("a", new=20)
    with pytest.raises(EngineStuck, match="iteration 6 is not done after 10 s"):
        await (await world.take_seat()).run()
    (began, _) = world.engine.ran[-1]
    assert now() - began == pytest.approx(10)
    assert world.loop.in_flight == [id]
    assert await world.read(id) == ([WORD] * 5, None)
    assert world.counters.take()["orca:engine_stuck|0"] == 1  # sent with the first exchange of the next owner


@virtual
async def test_a_long_prompt_does_not_count_as_stuck() -> None:
    world = World(iteration=cost)
    loop = await world.run()
    first = await world.submit("a", prompt=30, new=5)
    await world.ended(first)
    long = await world.submit("b", prompt=3000, new=2)  # 150 s
    await asyncio.sleep(140)
    assert not loop.done()
    await asyncio.sleep(20)
    assert await world.read(long) == ([WORD] * 2, "length")
    await stop(world, loop)


@virtual
async def test_a_stuck_engine_is_noticed_during_a_long_prompt() -> None:
    world = World(iteration=cost)
    world.engine.hangs = 5
    first = await world.submit("a", prompt=1000, new=4)
    loop = await world.run()
    await world.ended(first)
    long = await world.submit("b", prompt=1000, new=2)  # 30 s, as before
    with pytest.raises(EngineStuck):
        await loop
    (began, iteration) = world.engine.ran[-1]
    assert list(iteration.scheduled) == [long]
    assert 4 * 30 <= now() - began < 8 * 30


@virtual
async def test_a_cold_engine_gets_more_time() -> None:
    world = World(iteration=lambda it: 200.0 if it.step == 1 else 0.1)
    world.engine.hangs = 7
    id = await world.submit("a", new=3)
    loop = await world.run()
    await asyncio.sleep(201)
    assert await world.read(id) == ([WORD] * 3, "length")
    await stop(world, loop)


@virtual
async def test_an_engine_that_never_finished_an_iteration_is_abandoned() -> None:
    world = World()
    world.engine.hangs = 1
    await world.submit("a")
    with pytest.raises(EngineStuck):
        await (await world.take_seat()).run()
    assert now() == pytest.approx(240, abs=1)


@virtual
async def test_the_next_owner_knows_the_speed_of_the_engine() -> None:
    world = World(iteration=cost)
    loop = await world.run()
    await world.ended(await world.submit("a", new=3))
    await stop(world, loop)
    await world.pool.release(SEAT, world.epoch)
    world.engine.hangs, began = 1, now()
    await world.submit("b")
    with pytest.raises(EngineStuck):
        await (await world.take_seat("another")).run()
    assert now() - began == pytest.approx(10, abs=1)


@virtual
async def test_a_stuck_engine_is_noticed_while_a_call_to_the_pool_hangs() -> None:
    world = World(iteration=cost)
    world.engine.hangs = 6
    id = await world.submit("a", new=20)
    loop = await world.run()
    await asyncio.sleep(1.0)
    assert len(world.engine.ran) == 6
    world.connection.seconds = 1000.0  # a call that never returns
    with pytest.raises(EngineStuck):
        await loop
    assert now() < 20
    assert await world.read(id) == ([WORD] * 5, None)


class DistantEngine(WaitingEngine):
    """Its results take several rounds of the event loop, as over a network."""

    async def _run(self, iteration: Iteration, done: float) -> IterationResult:
        result = await super()._run(iteration, done)
        for _ in range(10):
            await asyncio.sleep(0)
        return result


@virtual
async def test_time_in_which_the_scheduler_stood_still_does_not_count() -> None:
    world = World(lease=3600.0)
    world.engine = DistantEngine(lambda it: 5.0)
    id = await world.submit("a", new=2)
    loop = await world.run()
    await asyncio.sleep(6)  # into the second iteration
    event_loop = asyncio.get_running_loop()
    event_loop.call_later(1, stand_still, 300.0)
    await asyncio.sleep(0)
    await world.ended(id)
    assert now() > 300
    await stop(world, loop)


def stand_still(seconds: float) -> None:
    asyncio.get_running_loop()._jumper.now += seconds  # type: ignore[attr-defined]
