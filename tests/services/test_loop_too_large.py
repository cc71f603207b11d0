"""Engines of different size, also of the same seat: a request that only a larger one can hold stops nobody else."""

from __future__ import annotations

import asyncio

import pytest
from loop_world import BLOCK, Line, World, stop, virtual

from services.errors import EngineLost
from services.pool.scripts import TOO_LARGE

SMALL, LARGE = 10, 100  # KV blocks
LONG = {"prompt": 40 * BLOCK, "new": 8 * BLOCK}
SHORT = ("a", "b", "c", "d")


async def submit_all(world: World) -> list[str]:
    """A long request, and short ones behind it."""
    return [await world.submit("long", **LONG), *[await world.submit(request) for request in SHORT]]


async def end_of(world: World, id: str) -> object:
    (snapshot,) = await world.pool.listen("g", {id: 0})
    return snapshot.end


@virtual
async def test_two_engines_of_different_size() -> None:
    """The small one goes on with what comes behind, the large one ends the long request."""
    small, large = World(blocks=SMALL), World(blocks=LARGE)
    large.pool, large.line = small.pool, Line(small.pool, 0.001)
    loops = [
        asyncio.create_task((await world.take_seat(f"owner {seat}", seat=seat)).run())
        for world, seat in ((small, "c/0"), (large, "c/1"))
    ]
    await asyncio.sleep(0.1)  # both seats are known
    long, *short = await submit_all(small)
    await small.ended(long, *short)
    assert [(await small.read(id))[1] for id in (long, *short)] == ["length"] * 5
    assert all(long not in batch for batch in small.engine.batches())
    assert any(long in batch for batch in large.engine.batches())
    await stop(small, loops[0])
    await stop(large, loops[1])


@virtual
async def test_the_larger_of_two_engines_is_lost() -> None:
    """The long request waits a minute for its seat, in which others are served, and ends then."""
    small, large = World(blocks=SMALL, lease=1e9), World(blocks=LARGE, lease=1e9)
    large.pool, large.line = small.pool, Line(small.pool, 0.001)
    running = asyncio.create_task((await small.take_seat(seat="c/0")).run())
    lost = asyncio.create_task((await large.take_seat(seat="c/1")).run())
    await asyncio.sleep(0.1)
    large.engine.dies = 3
    long, *short = await submit_all(small)
    with pytest.raises(EngineLost):
        await lost
    await small.pool.release("c/1", large.epoch, large.loop.in_flight)
    await small.ended(*short)
    assert await end_of(small, long) is None
    await asyncio.sleep(61.0)
    late = await small.submit("late")
    await small.ended(long, late)
    assert await end_of(small, long) == TOO_LARGE
    assert [(await small.read(id))[1] for id in (*short, late)] == ["length"] * 5
    await stop(small, running)


@pytest.mark.parametrize("crash", [False, True])
def test_the_same_seat_has_fewer_blocks(crash: bool) -> None:
    """After a restart, or after a death that left less memory: blocks are counted anew."""

    @virtual
    async def scenario() -> None:
        world = World(blocks=LARGE)
        running = asyncio.create_task((await world.take_seat()).run())
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
        smaller.pool, smaller.line = world.pool, Line(world.pool, 0.001)
        running = asyncio.create_task((await smaller.take_seat("next")).run())
        await smaller.ended(long, *short)
        assert await end_of(smaller, long) == TOO_LARGE
        assert (await smaller.read(long))[0] == tokens  # what was committed stays
        assert [(await smaller.read(id))[1] for id in short] == ["length"] * 4
        assert all(long not in batch for batch in smaller.engine.batches())
        await stop(smaller, running)

    scenario()
