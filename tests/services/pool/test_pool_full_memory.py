"""A server at its maxmemory refuses new requests only: calls that free memory or serve accepted requests succeed."""

from dataclasses import replace

import pytest
from pool_helpers import (
    ROOM,
    STOP,
    Owner,
    all_events,
    commit,
    configured,
    counts,
    full_memory,
    group,
    keys,
    let_time_pass,
    stored,
)

from services.errors import PoolUnavailable
from services.messages import Logprobs
from services.pool.group_packing import pack_group
from services.pool.limits import Limits
from services.pool.server.resources import FACTOR, max_memory

KEEP = 0.1


async def test_only_new_requests_are_refused(server_url, server_pools):
    pool = await server_pools()
    owner = await Owner.take(pool)
    for name in ("runs", "waits", "left", "unwanted"):
        await pool.submit(group(name, key=name))
    await owner.exchange(room=replace(ROOM, requests=1))
    async with full_memory(server_url):
        assert (await pool.overview()).full
        with pytest.raises(PoolUnavailable):
            await pool.submit(group("new"))
        assert (await pool.submit(group("waits", key="waits", gateway="another"))).existed
        assert [snapshot.known for snapshot in await pool.listen("another", {"runs/0": 0, "new/0": 0})] == [True, False]
        assert (await owner.exchange(commit("runs/0", 0, 5))).owned
        assert await pool.cancel("waits")
        assert await pool.delete("unwanted")
        await pool.unlisten("gateway", "left")
        assert not await pool.heartbeat("gateway", 1, {"n": 1.0})
        assert await pool.heartbeat("gateway", 2, {"n": 1.0})
        await pool.hold("name", "holder", 10)
        await pool.unhold("name", "holder")
        await pool.release(owner.seat, owner.epoch, ["runs/0"])
        spare = await Owner.take(pool, name="spare")
        assert [(claim.output, claim.strikes) for claim in (await spare.exchange(room=ROOM)).claims[:1]] == [([5], 1)]
        another = await Owner.take(pool, name="another", dead=spare.epoch)
        assert await another.claim() == ["runs/0"]
        await another.exchange(commit("runs/0", 1, 6, end=STOP))
        await pool.unregister("another")
    assert (await stored(pool, "runs/0")).tokens == [5, 6]
    assert [event.token for event in await all_events(pool) if event.id == "runs/0"] == [5, 6, None]
    assert (await pool.submit(group("new"))).refused is None
    assert not (await pool.overview()).full


async def test_ended_groups_expire_while_nothing_can_be_submitted(server_url, server_pools):
    pool = await server_pools(Limits(keep_ended=KEEP))
    owner = await Owner.take(pool)
    for name in ("by-exchange", "by-submit"):
        await pool.submit(group(name))
        await pool.cancel(name)
        async with full_memory(server_url):
            let_time_pass(pool, 2 * KEEP)
            if name == "by-exchange":
                await owner.exchange()
            else:
                with pytest.raises(PoolUnavailable):
                    await pool.submit(group("new"))
        assert await counts(pool) == (0, 0, 0)
        assert f"seq:{name}/0" not in await keys(pool)


async def test_commits_need_no_more_memory_than_was_counted_at_submit(server_url, server_pools):
    """Requests of the maximum length, with log probabilities, on a server that has no memory left."""
    pool, n, new, step = await server_pools(), 20, 400, 50
    requests = [group(f"r{i}", new=new, logprobs=3) for i in range(n)]
    for request in requests:
        await pool.submit(request)
    owner = await Owner.take(pool)
    await owner.exchange(room=replace(ROOM, requests=n, blocks=1000))
    said = [Logprobs(-0.5, [(token, -0.5) for token in range(3)])] * step
    async with configured(server_url) as client:
        before = (await client.info("memory"))["used_memory"]
        async with full_memory(server_url):
            for index in range(0, new, step):
                commits = [commit(f"r{i}/0", index, *range(step), logprobs=said) for i in range(n)]
                assert not (await owner.exchange(*commits)).have
            await pool.unregister("gateway")  # frees its events, whose number is bounded
            more = (await client.info("memory"))["used_memory"] - before
    for i in range(n):
        assert len((await stored(pool, f"r{i}/0")).tokens) == new
    assert more < FACTOR * sum(pack_group(request).size for request in requests)


def test_maxmemory_is_what_requests_need_and_at_most_half_of_the_memory(caplog):
    enough = max_memory(1 << 30, total=1 << 40)
    assert 1 << 30 < enough < 1 << 32
    assert not caplog.records
    assert max_memory(1 << 30, total=1 << 30) == 1 << 29
    assert "max_pool_bytes=1073741824" in caplog.text
