"""Names that one holder has at a time, each time under a later epoch."""

import asyncio


async def test_one_has_it_and_renews_it_under_the_same_epoch(pool):
    epoch = await pool.hold("a", "x", 60)
    assert epoch is not None
    assert await pool.hold("a", "y", 60) is None
    assert await pool.hold("a", "x", 60) == epoch
    assert await pool.hold("b", "y", 60) is not None


async def test_each_taking_has_a_later_epoch(pool):
    epochs = []
    for holder in "xyx":
        epochs.append(int(await pool.hold("a", holder, 60)))
        await pool.unhold("a", holder)
    assert epochs == sorted(set(epochs))


async def test_only_its_holder_gives_it_up(pool):
    await pool.hold("a", "x", 60)
    await pool.unhold("a", "y")
    assert await pool.hold("a", "y", 60) is None
    await pool.unhold("a", "x")
    assert await pool.hold("a", "y", 60) is not None


async def test_it_is_free_when_nobody_renews_it(pool):
    first = await pool.hold("a", "x", 0.05)
    second = None
    while second is None:
        await asyncio.sleep(0.01)
        second = await pool.hold("a", "y", 60)
    assert int(second) > int(first)
    assert await pool.hold("a", "x", 60) is None
