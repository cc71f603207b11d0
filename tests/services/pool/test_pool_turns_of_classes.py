"""Turns with priority classes and lines of batches."""

import pytest
from pool_helpers import Owner
from tenant_helpers import ONE, RANKED, end, flood, in_order, of

from services.messages import Room
from services.requests import BATCH_CLASS


async def test_an_earlier_class_goes_first_whichever_tenant_it_is_of(pools):
    pool = await pools(**RANKED)
    for i, (tenant, priority) in enumerate([("a", 0), ("a", 1), ("b", 1), ("b", 1), ("c", -1), ("c", 1)]):
        await pool.submit(of(tenant, f"{tenant}{i}", priority))
    assert await in_order(await Owner.take(pool)) == ["c4", "a0", "b2", "a1", "b3", "c5"]


async def test_a_tenant_without_a_turn_rises_a_class_each_ageing(pools):
    pool = await pools(**RANKED)
    await pool.submit(of("late", "late", 2, waited=250.0))
    await flood(pool, "a", 3)
    assert await in_order(await Owner.take(pool)) == ["late", "a0", "a1", "a2"]


async def test_a_flood_that_has_turns_does_not_rise(pools):
    pool = await pools(**RANKED)
    for i in range(4):
        await pool.submit(of("flood", f"flood{i}", 1, waited=400.0))
    await pool.submit(of("b", "b", 0))
    owner = await Owner.take(pool)
    assert await in_order(owner, Room(3, 99, 16)) == ["flood0", "b", "flood1"]


@pytest.mark.parametrize("limits", [{}, RANKED])
async def test_lines_of_batches_take_turns_behind_all_others(pools, limits):
    pool = await pools(**limits)
    await flood(pool, "a", 3, priority=BATCH_CLASS)
    await flood(pool, "b", 2, priority=BATCH_CLASS)
    await pool.submit(of("a", "asked", 8))
    assert await in_order(await Owner.take(pool)) == ["asked", "a0", "b0", "a1", "b1", "a2"]


@pytest.mark.parametrize("ageing", [0.0, 1e-6, 1e-3])
async def test_lines_of_batches_wait_behind_all_others_however_short_the_ageing(pools, ageing):
    pool = await pools(**RANKED | {"ageing": ageing})
    await flood(pool, "a", 1, priority=BATCH_CLASS)
    await flood(pool, "b", 1)
    assert await in_order(await Owner.take(pool)) == ["b0", "a0"]


async def test_without_ageing_tenants_take_turns_whatever_the_class(pools):
    pool = await pools(**RANKED | {"ageing": 0.0})
    await flood(pool, "a", 3, priority=-2, prompt=range(30))
    await flood(pool, "b", 3, priority=2, prompt=range(10))
    owner = await Owner.take(pool)
    assert await in_order(owner, ONE) == ["a0"]
    await pool.release(owner.seat, owner.epoch)
    owner = await Owner.take(pool, name="next")
    assert await in_order(owner) == ["a0", "b0", "b1", "b2", "a1", "a2"]


async def test_lines_of_batches_do_not_count_against_requests(pools):
    pool = await pools()
    await flood(pool, "c", 1)
    await flood(pool, "b", 1)
    owner = await Owner.take(pool)
    await end(owner, await owner.claim())
    await pool.submit(of("b", "line", BATCH_CLASS, prompt=range(100)))
    await end(owner, await owner.claim())
    for name in ("b1", "c1", "b2"):
        await pool.submit(of(name[0], name))
    assert await in_order(owner) == ["b1", "c1", "b2"]


@pytest.mark.parametrize(("first", "second", "order"), [("y", "z", ["la", "lb"]), ("z", "y", ["lb", "la"])])
async def test_groups_cancelled_at_the_same_time_are_cancelled_by_name(pools, first, second, order):
    """In either order both tenants join the turns of lines, and the first to join brings its own counter."""
    pool = await pools(grace=0.0)
    await pool.submit(of("a", "earlier", BATCH_CLASS, prompt=range(100)))
    owner = await Owner.take(pool)
    await end(owner, await owner.claim())
    for tenant, asked, line in (("a", first, "la"), ("b", second, "lb")):
        await pool.submit(of(tenant, asked, gateway="dying"))
        await pool.submit(of(tenant, line, BATCH_CLASS))
    await pool.unregister("dying")
    assert await in_order(owner) == order
