"""EngineLoop when the pool's line, the engine or the seat is lost."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from services.errors import EngineLost, StaleEpoch
from tests.services.loop_world import SEAT, WORD, World, stop, virtual


@virtual
async def test_the_engine_goes_on_while_the_pool_is_away_and_results_join() -> None:
    world = World(iteration=lambda it: 0.1)
    id = await world.submit("a", new=30)
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.55)
    world.line.down = "request"
    await asyncio.sleep(1.0)
    world.line.down = ""
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 30, "length")
    assert all(round(later - sooner, 6) == 0.1 for (sooner, _), (later, _) in pairwise(world.engine.ran))
    repeated = [x for _, x in world.line.sent if x.call == repeated_call(world)]
    assert len(repeated) > 3
    assert all(x is repeated[0] for x in repeated)  # unchanged
    assert len(repeated[0].commits[0].tokens) == 1
    after = next(x for _, x in world.line.sent if x.call == repeated[0].call + 1)
    assert len(after.commits[0].tokens) > 5  # what came meanwhile
    await stop(world, loop)


def repeated_call(world: World) -> int:
    calls = [x.call for _, x in world.line.sent]
    return max(calls, key=calls.count)


@virtual
async def test_a_reply_that_is_lost_costs_nothing() -> None:
    """The pool did it, we did not hear: the repeat gives the same claims and writes no token twice."""
    world = World()
    world.line.down = "reply"
    ids = [await world.submit(name, new=3) for name in "abc"]
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.5)
    assert world.engine.ran == []
    world.line.down = ""
    await asyncio.sleep(1.0)
    world.line.down = "reply"
    await asyncio.sleep(0.2)
    world.line.down = ""
    await world.ended(*ids)
    assert [await world.read(id) for id in ids] == [([WORD] * 3, "length")] * 3
    assert len(world.engine.ran) == 3
    await stop(world, loop)


@virtual
async def test_a_bell_that_cannot_be_waited_for_is_no_busy_loop() -> None:
    world = World()
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.5)
    world.line.down = "request"
    await asyncio.sleep(60)
    assert len(world.line.sent) < 60
    world.line.down = ""
    await asyncio.sleep(3)
    id = await world.submit("a")
    await world.ended(id)
    await stop(world, loop)


@virtual
async def test_an_epoch_that_is_over_ends_the_loop_and_its_late_tokens_are_not_written() -> None:
    world = World(iteration=lambda it: 1.0)
    id = await world.submit("a", new=5)
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(1.5)
    assert await world.read(id) == ([WORD], None)
    world.engine.token = lambda id: WORD + 1
    await world.pool.acquire(SEAT, "another", 5.0, dead_epoch=world.epoch)
    with pytest.raises(StaleEpoch, match=r"epoch .* of seat c/0 is over"):
        await loop
    assert await world.read(id) == ([WORD], None)


@virtual
async def test_a_lost_engine_ends_the_loop_and_the_next_owner_goes_on_at_the_next_index() -> None:
    world = World(iteration=lambda it: 0.1)
    world.engine.dies = 3
    ids = [await world.submit(name, prompt=20, new=5) for name in "ab"]
    with pytest.raises(EngineLost):
        await (await world.take_seat()).run()
    assert await world.read("a/0") == ([WORD] * 2, None)
    first, world.engine.ran = world.epoch, []
    world.engine.dies = 0
    loop = asyncio.create_task((await world.take_seat(dead_epoch=first)).run())
    await world.ended(*ids)
    assert world.engine.batches()[0] == {"a/0": 22, "b/0": 22}
    assert [await world.read(id) for id in ids] == [([WORD] * 5, "length")] * 2
    await stop(world, loop)


@virtual
async def test_tokens_already_on_their_way_arrive_though_the_engine_is_lost() -> None:
    world = World(iteration=lambda it: 0.1, exchange=0.15)  # slower than an iteration
    world.engine.dies = 3
    await world.submit("a", new=5)
    with pytest.raises(EngineLost):
        await (await world.take_seat()).run()
    tokens, _ = await world.read("a/0")
    assert tokens == [WORD] * 2
