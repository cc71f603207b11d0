"""A surplus seat: its loop claims nothing, lets its requests finish for a while, and ends by itself."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from services.loop.clock import now, run_in_virtual_time
from tests.services.loop.world import WORD, World, stop, virtual

SECOND = "c/1"
FEW, MANY = 5, 40  # tokens


async def two_worlds(drain_timeout: float = 10.0) -> tuple[World, World]:
    """Two engines on the pool of a cluster that is to have two; an iteration takes 0.1 s."""
    first, second = World(batch=2), World(batch=2)
    second.pool = second.connection.pool = first.pool
    second.drain_timeout = drain_timeout
    await first.pool.engines("c", 2)
    return first, second


@virtual
async def test_an_idle_seat_ends_as_soon_as_it_is_surplus() -> None:
    world, other = await two_worlds()
    running = await other.run(seat=SECOND)
    await asyncio.sleep(3)
    told = now()
    await world.pool.scale("c", 1)
    await running
    assert now() - told < 0.1


@virtual
async def test_requests_of_a_surplus_seat_finish_there_and_new_ones_run_elsewhere() -> None:
    first, second = await two_worlds()
    old = await second.submit("old", new=MANY)
    running = await second.run(seat=SECOND)
    await asyncio.sleep(1)
    await first.pool.scale("c", 1)
    new = await first.submit("new", new=FEW)
    loop = await first.run()
    await running
    assert await first.read(old) == ([WORD] * MANY, "length")
    assert {id for batch in second.engine.batches() for id in batch} == {old}
    await first.ended(new)
    assert {id for batch in first.engine.batches() for id in batch} == {new}
    await stop(first, loop)


@virtual
async def test_what_has_not_finished_in_time_goes_back_with_its_tokens() -> None:
    first, second = await two_worlds(drain_timeout=1.0)
    id = await second.submit("long", new=MANY)
    running = await second.run(seat=SECOND)
    await asyncio.sleep(1)
    told = now()
    await first.pool.scale("c", 1)
    await running
    assert 1.0 <= now() - told < 1.5
    await second.pool.release(SECOND, second.epoch)
    kept, end = await first.read(id)
    assert end is None
    assert 15 < len(kept) < MANY
    loop = await first.run()
    await first.ended(id)
    assert await first.read(id) == ([WORD] * MANY, "length")
    assert sum(len(x.commits[0].tokens) for _, x in first.connection.sent if x.commits) == MANY - len(kept)
    await stop(first, loop)


@virtual
async def test_a_seat_that_is_wanted_again_goes_on() -> None:
    first, second = await two_worlds(drain_timeout=2.0)
    old = await second.submit("old", new=MANY)
    running = await second.run(seat=SECOND)
    await asyncio.sleep(0.5)
    await first.pool.scale("c", 1)
    await asyncio.sleep(1)
    await first.pool.scale("c", 2)
    new = await second.submit("new", new=MANY)
    await second.ended(old, new)
    assert not running.done()
    await stop(second, running)


@settings(max_examples=25)
@given(
    changes=st.lists(st.tuples(st.floats(0, 2), st.integers(1, 3)), max_size=6),
    requests=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 30)), min_size=1, max_size=12),
)
def test_however_the_number_changes_each_request_ends_with_its_tokens(
    changes: list[tuple[float, int]], requests: list[tuple[float, int]]
) -> None:
    """Four schedulers share the seats, as those of a cluster do. At the end there are as many engines as wanted."""

    async def main() -> None:
        worlds = [World(batch=2) for _ in range(4)]
        pool = worlds[0].pool
        for world in worlds:
            world.pool = world.connection.pool = pool
            world.drain_timeout = 0.5
        await pool.engines("c", 1)
        schedulers = [asyncio.create_task(_scheduler(world, str(i))) for i, world in enumerate(worlds)]
        submitting = asyncio.create_task(_submit(worlds[0], requests))
        wanted = 1
        for pause, wanted in changes:
            await asyncio.sleep(pause)
            await pool.scale("c", wanted)
        ids = await submitting
        await worlds[0].ended(*ids)
        for (_, new), id in zip(requests, ids, strict=True):
            assert await worlds[0].read(id) == ([WORD] * new, "length")
        await asyncio.sleep(5)
        seats = (await pool.overview()).seats
        assert sorted(seat.name for seat in seats if seat.alive) == [f"c/{i}" for i in range(wanted)]
        assert (await pool.engines("c", 1)).surplus == []
        for scheduler in schedulers:
            scheduler.cancel()
        await asyncio.gather(*schedulers, return_exceptions=True)

    run_in_virtual_time(main())


async def _submit(world: World, requests: list[tuple[float, int]]) -> list[str]:
    ids = []
    for number, (pause, new) in enumerate(requests):
        await asyncio.sleep(pause)
        ids.append(await world.submit(f"r{number}", new=new))
    return ids


async def _scheduler(world: World, owner: str) -> None:
    """What a scheduler does for ever: it takes a free seat, serves or, if it is surplus, forgets it; else it waits."""
    while True:
        seats = await world.pool.engines("c", 1)
        for index in (*range(seats.wanted), *seats.surplus):
            seat = f"c/{index}"
            grant = await world.pool.acquire(seat, f"{owner} at {now()}", world.lease)
            if grant.granted and not grant.surplus:
                await world.pool.release(seat, grant.epoch)
                loop = await world.take_seat(owner, seat=seat)
                await loop.run()
                await world.pool.release(seat, world.epoch)
                break
            if grant.granted:
                await world.pool.release(seat, grant.epoch, removed=True)
        await asyncio.sleep(world.lease / 3)
