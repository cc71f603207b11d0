"""EngineLoop and a pool that comes back with an older state: the loop sends what the pool has lost."""

from __future__ import annotations

import asyncio

import pytest

from services.errors import StaleEpoch
from services.messages import Exchange, Room
from tests.services.loop.world import SEAT, WORD, Backup, World, begun, stop, virtual


async def lose(world: World, backup: Backup, noticed: bool) -> None:
    """Kill the pool's server and restart it with the state of `backup`."""
    if noticed:
        world.connection.down = "request"
        world.connection.cut()
        await asyncio.sleep(0.5)
        world.connection.down = ""
    backup.restore()


def resent(world: World) -> float:
    return sum(x.counters.get("orca:resent_tokens|0", 0) for _, x in world.connection.sent)


@pytest.mark.parametrize("noticed", [True, False])
@virtual
async def test_lost_tokens_are_resent_and_not_computed_again(noticed: bool) -> None:
    world, id, loop = await begun(0.45, new=30)
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
async def test_a_request_whose_end_was_lost_runs_to_its_end_again(noticed: bool) -> None:
    world, id, loop = await begun(0.45, new=6)
    backup = Backup(world.pool)
    await asyncio.sleep(1.0)
    assert await world.read(id) == ([WORD] * 6, "length")
    await lose(world, backup, noticed)
    assert await world.read(id) == ([WORD] * 4, None)  # and the scheduler does not have it any more
    await asyncio.sleep(world.lease / 3 + 0.3)  # the next exchange shows the loss, and two iterations follow
    assert await world.read(id) == ([WORD] * 6, "length")
    await stop(world, loop)


@virtual
async def test_an_end_in_a_pending_exchange_is_resent_with_its_tokens() -> None:
    world, id, loop = await begun(0.45, new=8)
    backup = Backup(world.pool)
    await asyncio.sleep(0.3)
    await lose(world, backup, noticed=True)  # the last token is sampled during this
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 8, "length")
    assert len(world.engine.ran) == 8
    await stop(world, loop)


async def call_beside(world: World) -> None:
    """Call the pool as the owner of the seat does before it kills a spare."""
    world.seat.call += 1
    await world.pool.exchange(Exchange(SEAT, world.epoch, world.seat.call, [], Room(0, 0, 1)))
    world.loop.doubt()


@virtual
async def test_a_loss_that_a_call_beside_the_loop_is_told_of_is_mended() -> None:
    world, id, loop = await begun(0.45, new=6)
    backup = Backup(world.pool)
    await asyncio.sleep(1.0)
    backup.restore()
    await call_beside(world)
    await asyncio.sleep(0.3)
    assert await world.read(id) == ([WORD] * 6, "length")
    await stop(world, loop)


@virtual
async def test_a_call_beside_the_loop_makes_no_request_wait() -> None:
    world, _, loop = await begun(2.0, new=2)
    await call_beside(world)
    await asyncio.sleep(0.1)
    later = await world.submit("later", new=2)
    await asyncio.sleep(0.3)
    assert await world.read(later) == ([WORD] * 2, "length")
    await stop(world, loop)


@virtual
async def test_a_lost_claim_is_given_out_again_and_computed_again() -> None:
    world = World()
    id = await world.submit("a", new=20)
    backup = Backup(world.pool)
    loop = await world.run()
    await asyncio.sleep(0.95)
    seat, epoch = world.pool._seats[SEAT], world.epoch
    backup.restore()
    world.pool._seats[SEAT] = seat  # the seat was saved, the claim was not
    seat.running.clear()
    await world.ended(id)
    assert world.epoch == epoch
    assert await world.read(id) == ([WORD] * 20, "length")
    assert sum(len(iteration.new) for _, iteration in world.engine.ran) == 2
    await stop(world, loop)


@virtual
async def test_a_seat_that_the_pool_does_not_know_is_lost() -> None:
    world = World()
    id = await world.submit("a", new=20)
    backup = Backup(world.pool)
    loop = await world.run()
    await asyncio.sleep(0.95)
    backup.restore()
    with pytest.raises(StaleEpoch):
        await loop
    again = await world.run()
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 20, "length")
    await stop(world, again)
