"""What ended stays readable for a while, and makes place when it is needed."""

import asyncio

from pool_helpers import STOP, Owner, commit, counts, group, stored

from services.messages import SubmitReply
from services.pool.limits import Limits, sequence_bytes

KEEP = 0.1


async def _end(pool, name, **more):
    await pool.submit(group(name, **more))
    await pool.cancel(name)


async def test_an_ended_group_expires_with_all_it_had(pools):
    pool = await pools(keep_ended=KEEP)
    await _end(pool, "r", n=2, key="k")
    assert await pool.submit(group("other", key="k")) == SubmitReply("r", existed=True)
    await asyncio.sleep(2 * KEEP)
    assert await pool.submit(group("other", key="k")) == SubmitReply("other")
    assert not (await stored(pool, "r/0")).known
    assert await pool.group("r") is None
    assert await counts(pool) == (1, 0, 0)
    assert (await pool.overview()).bytes == sequence_bytes(group("other").sequences[0])


async def test_an_exchange_expires_too(pools):
    pool = await pools(keep_ended=KEEP)
    owner = await Owner.take(pool)
    await _end(pool, "r")
    await asyncio.sleep(2 * KEEP)
    await owner.exchange()
    assert await counts(pool) == (0, 0, 0)


async def test_a_group_stays_whole_until_its_last_sequence_has_ended(pools):
    pool = await pools(keep_ended=KEEP)
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 1, end=STOP))
    await asyncio.sleep(2 * KEEP)
    await owner.exchange()
    assert (await stored(pool, "r/0")).tokens == [1]
    await owner.exchange(commit("r/1", 0, 2, end=STOP))
    assert (await stored(pool, "r/1")).tokens == [2]


async def test_the_oldest_ended_groups_make_place(pools):
    one = sequence_bytes(group("a").sequences[0])
    pool = await pools(max_bytes=3 * one)
    for name in ("a", "b", "c"):
        await _end(pool, name)
    assert (await pool.submit(group("d", n=2))).refused is None
    assert [(await stored(pool, f"{name}/0")).known for name in "abcd"] == [False, False, True, True]
    assert (await pool.overview()).bytes == 3 * one


async def test_nothing_is_forgotten_for_a_group_that_does_not_fit_anyway(pools):
    one = sequence_bytes(group("a").sequences[0])
    pool = await pools(max_bytes=3 * one)
    await pool.submit(group("living"))
    await _end(pool, "ended")
    assert (await pool.submit(group("big", n=3))).refused == "bytes"
    assert (await stored(pool, "ended/0")).known


async def test_an_empty_pool_leaves_no_keys_of_its_sequences(server_pools):
    pool = await server_pools(Limits(keep_ended=KEEP))
    owner = await Owner.take(pool)
    await pool.submit(group("r", n=2, key="k", logprobs=1))
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 1, end=STOP), commit("r/1", 0, 2))
    await pool.cancel("r")
    await owner.exchange(commit("r/1", 1, end=STOP))
    await pool.unregister("gateway")
    await asyncio.sleep(2 * KEEP)
    await owner.exchange()
    await pool.release(owner.seat, owner.epoch)
    keys = {key.decode().removeprefix(pool._prefix) for key in await pool._server.command("KEYS", f"{pool._prefix}*")}
    assert keys == {"meta", "seats", f"seat:{owner.seat}"}
