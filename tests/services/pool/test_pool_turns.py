"""Turns: tenants take turns by tokens served, none starves, and a tenant that is gone leaves nothing behind."""

import pytest
from pool_helpers import STOP, Owner, commit, keys, let_time_pass
from tenant_helpers import ONE, RANKED, WIDE, end, flood, in_order, of

from services.messages import Room


async def test_tenants_take_turns_and_the_requests_of_a_tenant_go_by_arrival(pools):
    pool = await pools()
    await flood(pool, "a", 5)
    await flood(pool, "b", 2)
    assert await in_order(await Owner.take(pool)) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


async def test_long_prompts_count_for_more(pools):
    pool = await pools()
    await flood(pool, "a", 3, prompt=range(30))
    await flood(pool, "b", 4, prompt=range(10))
    assert await in_order(await Owner.take(pool)) == ["a0", "b0", "b1", "b2", "a1", "b3", "a2"]


async def test_output_tokens_count_twice(pools):
    pool = await pools()
    await flood(pool, "a", 3, new=99)
    await flood(pool, "b", 9)
    owner = await Owner.take(pool)
    first = await owner.claim(Room(2, 999, 16))
    assert first == ["a0/0", "b0/0"]
    await owner.exchange(commit("a0/0", 0, *range(8)), commit("b0/0", 0, 1, end=STOP))
    assert await in_order(owner) == [f"b{i}" for i in range(1, 6)] + ["a1", "b6", "a2", "b7", "b8"]


async def test_a_tenant_that_asks_for_nothing_saves_up_no_turns(pools):
    pool = await pools()
    await flood(pool, "a", 9)
    owner = await Owner.take(pool)
    await end(owner, await owner.claim(Room(5, 999, 16)))
    await flood(pool, "b", 4)
    assert await in_order(owner) == ["a5", "b0", "a6", "b1", "a7", "b2", "a8", "b3"]


async def test_a_tenant_saves_up_no_turns_while_nothing_waits(pools):
    pool = await pools()
    await flood(pool, "a", 9)
    owner = await Owner.take(pool)
    await owner.claim(WIDE)
    await flood(pool, "b", 3)
    await pool.submit(of("a", "a9"))
    assert await in_order(owner) == ["b0", "a9", "b1", "b2"], "b joins with the counter that a had before its last turn"


async def test_a_requeued_request_is_charged_once_and_goes_first(pools):
    pool = await pools()
    await flood(pool, "a", 3, prompt=range(30), new=99)
    await flood(pool, "b", 6, prompt=range(10))
    owner = await Owner.take(pool)
    assert await in_order(owner, ONE) == ["a0"]
    await owner.exchange(commit("a0/0", 0, *range(20)))
    await pool.release(owner.seat, owner.epoch)
    owner = await Owner.take(pool, name="next")
    # tenant a is charged 30 + 2 * 16 tokens, as without the release
    assert await in_order(owner) == ["a0", "b0", "b1", "b2", "b3", "b4", "b5", "a1", "a2"]


async def test_a_request_that_does_not_fit_keeps_its_turn(pools):
    pool = await pools()
    await flood(pool, "a", 1, prompt=range(300))
    await flood(pool, "b", 1)
    owner = await Owner.take(pool)
    assert await in_order(owner, Room(9, 10, 16)) == []
    assert await in_order(owner, Room(9, 30, 16)) == ["a0", "b0"]


async def test_a_request_that_this_seat_can_never_hold_takes_no_turn(pools):
    pool = await pools()
    await Owner.take(pool, "larger")
    await pool.submit(of("a", "large", prompt=range(300)))
    await flood(pool, "a", 2)
    await flood(pool, "b", 2)
    owner = await Owner.take(pool)
    assert await in_order(owner, Room(9, 99, 16, longest=160)) == ["a0", "b0", "a1", "b1"]
    assert await in_order(owner, WIDE) == ["large"]


async def test_many_requests_for_another_seat_do_not_keep_other_tenants_from_their_turns(pools):
    pool = await pools()
    await Owner.take(pool, "larger")
    await pool.submit(of("a", "large", prompt=range(300), n=1100))
    await flood(pool, "b", 2, prompt=range(100))
    assert await in_order(await Owner.take(pool), Room(9, 99, 16, longest=160)) == ["b0", "b1"]
    assert await in_order(await Owner.take(pool, "another"), Room(1, 99, 16)) == ["large"]


@pytest.mark.parametrize("limits", [{}, RANKED])
async def test_a_tenant_is_not_starved_by_others_that_come_and_go(pools, limits):
    pool = await pools(**limits)
    await flood(pool, "a", 3, prompt=range(50))
    owner = await Owner.take(pool)
    order = []
    for i in range(12):
        await pool.submit(of("bcd"[i % 3], f"r{i}", prompt=range(50)))
        order += (ids := await owner.claim(ONE))
        await end(owner, ids)
    assert {"a0/0", "a1/0", "a2/0"} <= set(order)


async def test_the_counters_of_a_tenant_expire_after_its_last_request(server_pools):
    pool = await server_pools()
    await flood(pool, "a", 2)
    owner = await Owner.take(pool)
    ttl = ("PTTL", f"{pool._prefix}turn:a")
    assert await pool._server.command(*ttl) == -1
    await owner.claim()
    assert 0 < await pool._server.command(*ttl) <= 3_600_000
    await pool.release(owner.seat, owner.epoch)
    assert await pool._server.command(*ttl) == -1
    await end(owner := await Owner.take(pool, name="next"), await owner.claim())
    assert 0 < await pool._server.command(*ttl) <= 3_600_000
    await flood(pool, "b", 1)
    await pool.cancel("b0")
    assert 0 < await pool._server.command("PTTL", f"{pool._prefix}turn:b") <= 3_600_000
    assert not {key for key in await keys(pool) if key.startswith(("waiting", "turns"))}


async def test_a_request_that_outlives_its_tenants_counters_leaves_nothing(server_pools):
    pool = await server_pools()
    await flood(pool, "a", 1, new=99)
    owner = await Owner.take(pool)
    await owner.claim()
    await pool._server.command("DEL", f"{pool._prefix}turn:a")
    await owner.exchange(commit("a0/0", 0, *range(9)))
    assert 0 < await pool._server.command("PTTL", f"{pool._prefix}turn:a") <= 3_600_000
    await flood(pool, "b", 2)
    assert await in_order(owner) == ["b0", "b1"]


async def test_of_equal_counters_a_tenant_that_joins_goes_before_one_that_has_just_had_a_turn(pools):
    pool = await pools()
    owner = await Owner.take(pool)
    await flood(pool, "b", 1)
    await owner.claim(ONE)
    let_time_pass(pool, 0.001)
    await flood(pool, "a", 3)
    assert await owner.claim(ONE) == ["a0/0"]
    await pool.submit(of("b", "b1"))
    assert await owner.claim(ONE) == ["b1/0"]
