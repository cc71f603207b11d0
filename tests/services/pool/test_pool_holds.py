"""Named locks: one holder at a time, with a greater epoch each time that the lock is taken."""

import asyncio

from pool_helpers import let_time_pass


async def test_the_holder_renews_the_lock_with_the_same_epoch(pool):
    epoch = await pool.hold("a", "x", 60)
    assert epoch is not None
    assert await pool.hold("a", "y", 60) is None
    assert await pool.hold("a", "x", 60) == epoch
    assert await pool.hold("b", "y", 60) is not None


async def test_each_new_holder_gets_a_greater_epoch(pool):
    epochs = []
    for holder in "xyx":
        epochs.append(int(await pool.hold("a", holder, 60)))
        await pool.unhold("a", holder)
    assert epochs == sorted(set(epochs))


async def test_only_the_holder_frees_the_lock(pool):
    await pool.hold("a", "x", 60)
    await pool.unhold("a", "y")
    assert await pool.hold("a", "y", 60) is None
    await pool.unhold("a", "x")
    assert await pool.hold("a", "y", 60) is not None


async def test_a_lock_that_is_not_renewed_becomes_free(pool):
    first = await pool.hold("a", "x", 0.05)
    second = None
    while second is None:
        await asyncio.sleep(0.01)  # the server itself lets it expire
        let_time_pass(pool, 0.01)
        second = await pool.hold("a", "y", 60)
    assert int(second) > int(first)
    assert await pool.hold("a", "x", 60) is None
