"""Bounds of all tenants together and of each: which groups are refused and why, which ended groups are dropped."""

from dataclasses import replace

import pytest
from pool_helpers import Owner, ended_size, group, let_wait, size, stored

from services.messages import Room, SubmitReply
from services.pool import pool as pool_module
from services.pool.limits import Bounds, Limits
from services.requests import BATCH_CLASS, Refusal


async def refusal(pool, submission):
    return (await pool.submit(submission)).refused


async def test_a_tenant_at_its_share_is_refused_and_others_are_not(pools):
    pool = await pools(max_waiting=8, tenant_share=0.5)
    await pool.submit(group("a", n=3, tenant="a"))
    assert await refusal(pool, group("b", n=2, tenant="a")) == Refusal("waiting", True, 3, 2, 4)
    assert await refusal(pool, group("c", n=4, tenant="c")) is None
    assert await refusal(pool, group("d", n=2, tenant="d")) == Refusal("waiting", False, 7, 2, 8)


async def test_a_tenant_may_have_bounds_of_its_own(pools):
    pool = await pools(max_waiting=8, tenant_share=0.5, tenants={"a": Bounds(waiting=1), "b": Bounds(waiting=7)})
    assert await refusal(pool, group("a", n=2, tenant="a")) == Refusal("waiting", True, 0, 2, 1)
    assert await refusal(pool, group("b", n=7, tenant="b")) is None


async def test_prompt_tokens_that_wait_are_bounded(pools):
    pool = await pools(max_waiting_tokens=10)
    await pool.submit(group("a", n=2, prompt=range(4)))
    assert await refusal(pool, group("b", prompt=range(3))) == Refusal("waiting_tokens", False, 8, 3, 10)
    await (await Owner.take(pool)).claim(Room(1, 64, 16))
    assert await refusal(pool, group("b", prompt=range(3))) is None


async def test_streams_are_bounded(pools):
    """Waiting and running groups count; groups for which no client waits do not."""
    pool = await pools(max_streams=2)
    for name, more in (("a", {}), ("b", {"background": True}), ("c", {"priority": BATCH_CLASS}), ("d", {})):
        assert await refusal(pool, replace(group(name, n=2), **more)) is None
    await (await Owner.take(pool)).claim()
    assert await refusal(pool, group("e")) == Refusal("streams", False, 2, 1, 2)
    assert await refusal(pool, replace(group("e"), background=True)) is None
    await pool.cancel("never")
    await pool.delete("b")
    assert (await refusal(pool, group("f"))).bound == "streams"


async def test_a_group_that_does_not_fit_an_empty_pool_is_refused_for_good(pools):
    pool = await pools(max_waiting=2)
    assert (await refusal(pool, group("a", n=3))).for_good
    await pool.submit(group("b", n=2))
    assert not (await refusal(pool, group("c"))).for_good


async def test_the_number_of_ended_groups_is_bounded(pools):
    pool = await pools(max_stored=2)
    for name in "abc":
        await pool.submit(group(name))
        await pool.cancel(name)
    assert [(await stored(pool, f"{name}/0")).known for name in "abc"] == [False, True, True]


async def _end(pool, tenant, count):
    for i in range(count):
        await pool.submit(group(f"{tenant}{i}", tenant=tenant))
        await pool.cancel(f"{tenant}{i}")


async def left(pool, tenant, count):
    return [i for i in range(count) if await pool.group(f"{tenant}{i}")]


async def test_a_tenants_own_ended_groups_are_dropped_first(pools):
    ended, asked = ended_size(group("a0", tenant="a")), group("new", tenant="a", n=2)
    pool = await pools(max_bytes=7 * ended + size(asked))
    await _end(pool, "b", 3)
    await _end(pool, "a", 5)
    assert await refusal(pool, asked) is None
    assert await left(pool, "b", 3) == [0, 1, 2]
    assert await left(pool, "a", 5) == [1, 2, 3, 4]


async def test_ended_groups_within_a_tenants_share_are_not_dropped_for_others(pools):
    """Half of the pool holds another tenant's ended groups; one tenant cannot take it, however much it submits."""
    ended = ended_size(group("a0", tenant="a"))
    pool = await pools(max_bytes=20 * ended)
    await _end(pool, "b", 8)
    for i in range(20):
        await pool.submit(group(f"open{i}", tenant="a"))
    assert (await refusal(pool, group("more", tenant="a"))).bound == "bytes"
    assert await left(pool, "b", 8) == list(range(8))


async def test_ended_groups_above_a_tenants_share_are_dropped_for_others(pools):
    ended = ended_size(group("a0", tenant="a"))
    pool = await pools(max_bytes=10 * ended)
    await _end(pool, "a", 9)
    await _end(pool, "b", 2)
    assert await refusal(pool, group("open", tenant="b")) is None
    assert await left(pool, "b", 2) == [0, 1]
    assert len(await left(pool, "a", 9)) < 9


async def test_a_tenants_ended_groups_are_dropped_for_its_own_bound(pools):
    asked = group("new", tenant="a")
    pool = await pools(tenants={"a": Bounds(bytes=2 * size(asked))})
    await _end(pool, "b", 2)
    await _end(pool, "a", 6)
    assert await refusal(pool, asked) is None
    assert await left(pool, "b", 2) == [0, 1]
    assert len(await left(pool, "a", 6)) < 3
    refused = await refusal(pool, group("second", tenant="a", n=2))
    assert (refused.bound, refused.own, refused.held) == ("bytes", True, size(asked))


async def test_one_script_drops_a_limited_number_of_sequences(server_pools):
    """A group that needs more is refused this time, and enters soon after."""
    many = [group(f"r{i}", n=1000, new=1) for i in range(6)]
    pool = await server_pools(Limits(max_waiting=1000, max_bytes=6 * size(many[0])))
    for submission in many:
        await pool.submit(submission)
        await pool.cancel(submission.request)
    asked = group("new", new=660_000)
    assert pool.limits.max_bytes - size(many[0]) < size(asked) < pool.limits.max_bytes
    assert (await refusal(pool, asked)).bound == "bytes"
    assert len([1 for s in many if await pool.group(s.request)]) == 1
    assert await refusal(pool, asked) is None


async def test_a_message_that_is_too_long_is_refused_for_good(server_pools, monkeypatch):
    monkeypatch.setattr(pool_module, "MESSAGE_BYTES", 2000)
    pool = await server_pools()
    assert (await pool.submit(group("a", prompt=range(200)))).refused is None
    reply = await pool.submit(group("b", prompt=range(600)))
    assert reply == SubmitReply("b", refused=Refusal("message", False, 0, reply.refused.asked, 2000))
    assert reply.refused.for_good
    assert await pool.group("b") is None


async def test_the_time_until_a_retry_is_measured(server_pools):
    """It is a guess while nothing has left. Then it is the time until a tenth of the bound is free."""
    pool = await server_pools(Limits(max_waiting=100))
    await pool.submit(group("a", n=100))
    assert (await refusal(pool, group("b"))).retry_after == 10
    await (await Owner.take(pool)).claim(Room(60, 1000, 16))
    await pool.submit(group("c", n=60))
    assert 1 <= (await refusal(pool, group("d"))).retry_after < 10


async def test_a_slow_pool_asks_for_two_minutes_at_most(server_pools):
    pool = await server_pools(Limits(max_waiting=2000))
    for i in range(2):
        await pool.submit(group(f"a{i}", n=1000))
    await (await Owner.take(pool)).claim(Room(1, 64, 16))
    await pool.submit(group("b"))
    await let_wait(pool, 60)
    assert (await refusal(pool, group("c", n=1900))).retry_after == 120


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_bounds_of_a_tenant(share):
    limits = Limits(10, 1000, max_streams=1, tenant_share=share, tenants={"a": Bounds(waiting=3, bytes=2000)})
    half = Bounds(5, 0, 0, 500) if share < 1 else Bounds()
    assert limits.bounds_of("other") == half
    assert limits.bounds_of("a") == half._replace(waiting=3, bytes=0)
