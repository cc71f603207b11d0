"""A sequence that the engine of a seat can never hold does not block the queue behind it."""

import asyncio

from pool_helpers import Owner, all_events, group, let_time_pass

from load.reference.pool import RETURN_TIME
from services.messages import Room
from services.pool.scripts import TOO_LARGE

SMALL = Room(8, 10, 4, longest=40)
LARGE = Room(8, 100, 4, longest=400)
LONG = {"prompt": range(50), "new": 50}


async def end_of(pool, id):
    (snapshot,) = await pool.listen("gateway", {id: 0})
    return snapshot.end


async def test_it_ends_where_no_engine_can_hold_it_and_others_are_claimed(pool):
    await pool.submit(group("long", **LONG))
    await pool.submit(group("short"))
    owner = await Owner.take(pool)
    assert await owner.claim(SMALL) == ["short/0"]
    assert await end_of(pool, "long/0") == TOO_LARGE
    assert [(e.id, e.end) for e in await all_events(pool) if e.end] == [("long/0", TOO_LARGE)]
    assert (await pool.overview()).waiting == 0


async def test_it_waits_for_the_engine_that_can_hold_it(pool):
    small, large = await Owner.take(pool, "small"), await Owner.take(pool, "large")
    await large.exchange(room=LARGE)
    await pool.submit(group("long", **LONG))
    await pool.submit(group("short"))
    assert await small.claim(SMALL) == ["short/0"]
    assert await large.claim(LARGE) == ["long/0"]


async def test_an_engine_of_unknown_size_may_hold_it(pool):
    small, loading = await Owner.take(pool, "small"), await Owner.take(pool, "loading")
    await loading.exchange(room=Room(0, 0, 1))
    await pool.submit(group("long", **LONG))
    assert await small.claim(SMALL) == []
    assert await end_of(pool, "long/0") is None
    await loading.exchange(room=Room(0, 0, 4, longest=40))
    assert await small.claim(SMALL) == []
    assert await end_of(pool, "long/0") == TOO_LARGE


async def test_it_waits_for_a_seat_that_lost_its_owner_as_long_as_a_start_may_take(pool):
    large = await Owner.take(pool, "large")
    await large.exchange(room=LARGE)
    await pool.submit(group("long", **LONG))
    await pool.release("large", large.epoch)
    let_time_pass(pool, RETURN_TIME - 60)
    small = await Owner.take(pool, "small")
    assert await small.claim(SMALL) == []
    assert await end_of(pool, "long/0") is None
    again = await Owner.take(pool, "large")
    assert await again.claim(LARGE) == ["long/0"]


async def test_it_does_not_wait_forever_for_a_seat_that_lost_its_owner(pool):
    large = await Owner.take(pool, "large")
    await large.exchange(room=LARGE)
    await pool.submit(group("long", **LONG))
    await pool.release("large", large.epoch)
    let_time_pass(pool, RETURN_TIME + 1)
    small = await Owner.take(pool, "small")
    assert await small.claim(SMALL) == []
    assert await end_of(pool, "long/0") == TOO_LARGE


async def test_a_sequence_that_does_not_fit_now_blocks_those_behind_it(pool):
    """As in Algorithm 1 of the Orca paper; otherwise a stream of short requests would keep it waiting forever."""
    owner = await Owner.take(pool)
    await pool.submit(group("large", prompt=range(20), new=20))
    await pool.submit(group("short"))
    assert await owner.claim(Room(8, 5, 4, longest=40)) == []


async def test_a_seat_that_must_end_more_of_them_than_one_call_may_calls_again_at_once(pool):
    await pool.submit(group("long", n=128, **LONG))
    for i in range(8):
        await pool.submit(group(f"long{i}", n=128, **LONG))
    await pool.submit(group("short"))
    owner = await Owner.take(pool)
    claims = (await owner.exchange(room=SMALL, idle=True)).claims
    if not claims:
        await asyncio.wait_for(pool.wait_bell(owner.seat, 60), 10)
        claims = (await owner.exchange(room=SMALL, idle=True)).claims
    assert [claim.id for claim in claims] == ["short/0"]
    assert (await pool.overview()).waiting == 0


async def test_an_engine_with_blocks_but_a_short_length_leaves_it_to_a_longer_one(pool):
    """Both have the blocks: only what they can serve, by the smaller of blocks and length, is claimed."""
    short_length = Room(8, 100, 4, longest=40)
    short, long = await Owner.take(pool, "short"), await Owner.take(pool, "long")
    await long.exchange(room=LARGE)
    await pool.submit(group("long", **LONG))
    assert await short.claim(short_length) == []
    assert await long.claim(LARGE) == ["long/0"]
