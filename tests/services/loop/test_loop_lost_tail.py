"""EngineLoop and a pool that comes back with an older state: what it holds more, it puts back."""

from __future__ import annotations

import asyncio

import pytest

from services.errors import StaleEpoch
from tests.services.loop.loop_world import SEAT, WORD, Backup, World, stop, virtual


async def lose(world: World, backup: Backup, noticed: bool) -> None:
    """The pool's server is killed and comes back with what `backup` has."""
    if noticed:
        world.line.down = "request"
        world.line.cut()
        await asyncio.sleep(0.5)
        world.line.down = ""
    backup.restore()


def resent(world: World) -> float:
    return sum(x.counters.get("orca:resent_tokens", 0) for _, x in world.line.sent)


@pytest.mark.parametrize("noticed", [True, False])
@virtual
async def test_lost_tokens_are_sent_again_and_nothing_is_computed_twice(noticed: bool) -> None:
    world = World(iteration=lambda it: 0.1)
    id = await world.submit("a", new=30)
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.45)
    backup = Backup(world.pool)
    await asyncio.sleep(1.0)
    assert len((await world.read(id))[0]) == 14
    await lose(world, backup, noticed)
    assert len((await world.read(id))[0]) == 4
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 30, "length")
    assert sum(len(iteration.new) for _, iteration in world.engine.ran) == 1
    assert len(world.engine.ran) == 30
    assert resent(world) >= 10
    await stop(world, loop)


@pytest.mark.parametrize("noticed", [True, False])
@virtual
async def test_an_end_that_was_confirmed_and_lost_is_made_again(noticed: bool) -> None:
    world = World(iteration=lambda it: 0.1)
    id = await world.submit("a", new=6)
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.45)
    backup = Backup(world.pool)
    await asyncio.sleep(1.0)
    assert await world.read(id) == ([WORD] * 6, "length")
    await lose(world, backup, noticed)
    assert await world.read(id) == ([WORD] * 4, None)  # and the scheduler has forgotten it
    await asyncio.sleep(world.lease)
    assert await world.read(id) == ([WORD] * 6, "length")
    await stop(world, loop)


@virtual
async def test_an_end_on_its_way_when_the_tail_was_lost_goes_again_with_its_tokens() -> None:
    world = World(iteration=lambda it: 0.1)
    id = await world.submit("a", new=8)
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.45)
    backup = Backup(world.pool)
    await asyncio.sleep(0.3)
    await lose(world, backup, noticed=True)  # the last token is made meanwhile
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 8, "length")
    assert len(world.engine.ran) == 8
    await stop(world, loop)


@virtual
async def test_a_claim_that_was_lost_is_given_again_and_computed_once_more() -> None:
    world = World(iteration=lambda it: 0.1)
    id = await world.submit("a", new=20)
    backup = Backup(world.pool)
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.95)
    seat, epoch = world.pool._seats[SEAT], world.epoch
    backup.restore()
    world.pool._seats[SEAT] = seat  # the seat was written before, the claim was not
    seat.running.clear()
    await world.ended(id)
    assert world.epoch == epoch
    assert await world.read(id) == ([WORD] * 20, "length")
    assert sum(len(iteration.new) for _, iteration in world.engine.ran) == 2
    await stop(world, loop)


@virtual
async def test_a_seat_that_the_pool_never_heard_of_is_lost() -> None:
    world = World(iteration=lambda it: 0.1)
    id = await world.submit("a", new=20)
    backup = Backup(world.pool)
    loop = asyncio.create_task((await world.take_seat()).run())
    await asyncio.sleep(0.95)
    backup.restore()
    with pytest.raises(StaleEpoch):
        await loop
    again = asyncio.create_task((await world.take_seat()).run())
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 20, "length")
    await stop(world, again)
