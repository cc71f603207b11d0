"""An idle engine: its loop lets it give back its KV cache, ends when it is to be cold, and wakes it for a request."""

from __future__ import annotations

import asyncio

import pytest

from load.reference.pool import ReferencePool
from load.reference.state import LoopClock
from services.loop.clock import now
from services.messages import NewSequence, Submission
from services.overview import SleepLevel
from services.pool.limits import Limits
from services.requests import SamplingParams
from services.scheduling import Knobs
from services.sleep import SleepRule
from tests.services.loop.world import BLOCK, WORD, World, begun, stop, virtual

AFTER = 30.0


def sleeps(world: World) -> list[float]:
    """When the engine was told to give back its KV cache."""
    return [at for at, iteration in world.engine.ran if iteration.sleep]


@virtual
async def test_an_engine_is_asleep_and_then_cold_if_nothing_comes() -> None:
    world = World(sleep=SleepRule(AFTER))
    loop = await world.run()
    began = now()
    await loop
    assert sleeps(world) == [pytest.approx(began + AFTER, abs=0.1)]
    assert world.loop.level is SleepLevel.COLD
    assert now() == pytest.approx(began + 2 * AFTER, abs=0.1)


@virtual
async def test_a_request_wakes_it_and_the_time_counts_anew() -> None:
    world, id, loop = await begun(AFTER + 5, sleep=SleepRule(AFTER))
    assert world.loop.level is SleepLevel.ASLEEP
    later = await world.submit("later", new=4)
    await world.ended(later)
    assert await world.read(later) == await world.read(id) == ([WORD] * 4, "length")
    assert world.loop.level is SleepLevel.AWAKE
    ended = now()
    await loop
    assert now() == pytest.approx(ended + 2 * AFTER, abs=0.5 + world.lease / 3)  # it knows a renewal later
    assert len(sleeps(world)) == 2


@virtual
async def test_no_prefix_is_cached_after_the_memory_was_given_back() -> None:
    knobs = Knobs(4, prefix_caching=True)
    world, _, loop = await begun(1.0, new=1, sleep=SleepRule(AFTER), prompt=4 * BLOCK, knobs=knobs)
    again = await world.submit("again", prompt=4 * BLOCK, new=1)
    await world.ended(again)
    await asyncio.sleep(AFTER + 5)
    last = await world.submit("last", prompt=4 * BLOCK, new=1)
    await world.ended(last)
    computed = {new.id: new.num_computed_tokens for _, iteration in world.engine.ran for new in iteration.new}
    assert computed == {"a/0": 0, again: 3 * BLOCK, last: 0}
    assert not any(iteration.full_blocks for _, iteration in world.engine.ran if iteration.sleep)
    world.scheduler.blocks.check()
    await stop(world, loop)


@virtual
async def test_a_busy_engine_does_not_sleep() -> None:
    world, id, loop = await begun(3 * AFTER, new=2000, sleep=SleepRule(AFTER))
    assert not sleeps(world)
    assert not (await world.read(id))[1]
    world.loop.stop()
    await loop


@virtual
async def test_without_the_setting_no_engine_sleeps() -> None:
    world, _, loop = await begun(10_000.0)
    assert not sleeps(world)
    assert world.loop.level is SleepLevel.AWAKE
    await stop(world, loop)


@virtual
async def test_an_engine_that_hangs_while_it_falls_asleep_is_stuck() -> None:
    world = World(sleep=SleepRule(AFTER))
    world.engine.hangs = 1
    with pytest.raises(Exception, match="iteration 1 is not done"):
        await (await world.run())


@virtual
async def test_an_idle_engine_makes_room_at_once() -> None:
    world, _, loop = await begun(5.0)
    world.loop.give_way()
    await asyncio.wait_for(loop, 1.0)
    assert world.loop.level is SleepLevel.COLD


@virtual
async def test_an_engine_that_makes_room_claims_nothing_and_keeps_its_tokens() -> None:
    world, id, loop = await begun(5.05, new=2000)
    world.loop.give_way()
    later = await world.submit("later")
    await asyncio.wait_for(loop, 1.0)
    assert world.loop.level is SleepLevel.COLD
    tokens, end = await world.read(id)
    assert len(tokens) == sum(id in batch for batch in world.engine.batches())
    assert not end
    assert await world.read(later) == ([], None)


@virtual
async def test_an_engine_makes_room_although_its_earliest_request_waits_for_others() -> None:
    """One of an earlier class takes its blocks before its prompt is computed, and then runs for 100 s."""
    knobs = Knobs(2, token_budget=9, tbt_target=1.0, stretch_target=True, admission="on_demand", order="priority")
    world = World(knobs=knobs, blocks=2000 // BLOCK + 6)
    world.pool = world.connection.pool = ReferencePool(LoopClock(), Limits(order="priority"))
    loop = await world.run()
    for name, prompt, new, priority in (("late", 2000, 50, 5), ("early", 1, 1000, 0)):
        sequence = NewSequence(f"{name}/0", [WORD] * prompt, SamplingParams(new))
        await world.pool.submit(Submission(name, "g", [sequence], priority=priority))
        await asyncio.sleep(2.0)
    world.loop.give_way()
    await asyncio.wait_for(loop, 60.0)
    assert "late/0" not in world.engine.batches()[-1]
    assert not (await world.read("late/0"))[0]
    assert not (await world.read("early/0"))[1]


@virtual
async def test_the_earliest_request_gets_a_token_before_an_engine_makes_room() -> None:
    """Its prompt takes 29 iterations."""
    world, id, loop = await begun(0.05, new=50, prompt=256, knobs=Knobs(2, token_budget=9))
    world.loop.give_way()
    await asyncio.wait_for(loop, 60.0)
    assert len(world.engine.batches()) >= 256 // 9
    tokens, end = await world.read(id)
    assert tokens
    assert not end
