"""Engines of different size: a request that only the larger one can hold does not stop other requests."""

from __future__ import annotations

import asyncio

import pytest

from load.reference.pool import RETURN_TIME
from services.errors import EngineLost
from services.pool.scripts import TOO_LARGE
from tests.services.loop.world import BLOCK, Connection, World, stop, virtual

SMALL, LARGE = 10, 100  # KV blocks
LONG = {"prompt": 40 * BLOCK, "new": 8 * BLOCK}
SHORT = ("a", "b", "c", "d")


async def submit_all(world: World) -> list[str]:
    """Submit a long request and short ones after it."""
    return [await world.submit("long", **LONG), *[await world.submit(request) for request in SHORT]]


async def end_of(world: World, id: str) -> object:
    (snapshot,) = await world.pool.listen("g", {id: 0})
    return snapshot.end


@virtual
async def test_two_engines_of_different_size() -> None:
    """The small engine continues with the short requests, the large one ends the long request."""
    small, large = World(blocks=SMALL), World(blocks=LARGE)
    large.pool, large.connection = small.pool, Connection(small.pool, 0.001)
    loops = [await world.run(f"owner {seat}", seat=seat) for world, seat in ((small, "c/0"), (large, "c/1"))]
    await asyncio.sleep(0.1)  # until the pool knows both seats
    long, *short = await submit_all(small)
    await small.ended(long, *short)
    assert [(await small.read(id))[1] for id in (long, *short)] == ["length"] * 5
    assert all(long not in batch for batch in small.engine.batches())
    assert any(long in batch for batch in large.engine.batches())
    await stop(small, loops[0])
    await stop(large, loops[1])


@virtual
async def test_the_larger_of_two_engines_is_lost() -> None:
    """The long request waits for that seat, while others are served, and then ends."""
    small, large = World(blocks=SMALL, lease=1e9), World(blocks=LARGE, lease=1e9)
    large.pool, large.connection = small.pool, Connection(small.pool, 0.001)
    running = await small.run(seat="c/0")
    lost = await large.run(seat="c/1")
    await asyncio.sleep(0.1)
    large.engine.dies = 3
    long, *short = await submit_all(small)
    with pytest.raises(EngineLost):
        await lost
    await small.pool.release("c/1", large.epoch, large.loop.in_flight)
    await small.ended(*short)
    assert await end_of(small, long) is None
    assert [(await small.read(id))[1] for id in short] == ["length"] * 4
    await asyncio.sleep(RETURN_TIME + 1)
    late = await small.submit("late")
    await small.ended(long, late)
    assert await end_of(small, long) == TOO_LARGE
    assert (await small.read(late))[1] == "length"
    await stop(small, running)


@pytest.mark.parametrize("crash", [False, True])
def test_the_same_seat_has_fewer_blocks(crash: bool) -> None:
    """After a restart or a death, the engine may have less memory and fewer blocks."""

    @virtual
    async def scenario() -> None:
        world = World(blocks=LARGE)
        running = await world.run()
        long = await world.submit("long", **LONG)
        if crash:
            world.engine.dies = 5
            with pytest.raises(EngineLost):
                await running
            await world.pool.release("c/0", world.epoch, world.loop.in_flight)
        else:
            await asyncio.sleep(0.55)
            world.loop.stop()
            await running
            await world.pool.release("c/0", world.epoch, [])
        tokens, end = await world.read(long)
        assert tokens
        assert end is None
        short = [await world.submit(request) for request in SHORT]

        smaller = World(blocks=SMALL)
        smaller.pool, smaller.connection = world.pool, Connection(world.pool, 0.001)
        running = await smaller.run("next")
        await smaller.ended(long, *short)
        assert await end_of(smaller, long) == TOO_LARGE
        assert (await smaller.read(long))[0] == tokens  # committed tokens stay
        assert [(await smaller.read(id))[1] for id in short] == ["length"] * 4
        assert all(long not in batch for batch in smaller.engine.batches())
        await stop(smaller, running)

    scenario()
