"""Tenants take turns by tokens served; within a tenant the order is that of one tenant alone."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_helpers import STOP, Owner, WallClock, commit, group, keys

from services.messages import Room
from services.pool.limits import Limits
from services.pool.reference.pool import ReferencePool
from services.requests import BATCH_CLASS

ONE, WIDE = Room(1, 999, 16), Room(99, 999, 16)
RANKED = {"order": "priority", "ageing": 60.0, "ttft_target": 10.0}


def of(tenant, request, priority=0, waited=0.0, **more):
    return replace(group(request, tenant=tenant, **more), priority=priority, waited=waited)


async def flood(pool, tenant, count, **more):
    for i in range(count):
        await pool.submit(of(tenant, f"{tenant}{i}", **more))


async def in_order(owner, room=WIDE):
    """Requests in the order they are claimed."""
    return [id.rpartition("/")[0] for id in await owner.claim(room)]


async def ended(owner, ids, tokens=4):
    """What it runs ends, with so many tokens each."""
    await owner.exchange(*(commit(id, 0, *range(tokens), end=STOP) for id in ids))


# --- by tokens served ---


async def test_tenants_take_turns_and_a_tenant_s_requests_go_by_arrival(pools):
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
    await ended(owner, await owner.claim(Room(5, 999, 16)))
    await flood(pool, "b", 4)
    assert await in_order(owner) == ["a5", "b0", "a6", "b1", "a7", "b2", "a8", "b3"]


async def test_nor_while_nobody_waits(pools):
    pool = await pools()
    await flood(pool, "a", 9)
    owner = await Owner.take(pool)
    await owner.claim(WIDE)
    await flood(pool, "b", 3)
    await pool.submit(of("a", "a9"))
    assert await in_order(owner) == ["b0", "b1", "a9", "b2"], "b comes in with what a had before its last turn"


async def test_what_is_put_back_is_charged_once_and_goes_on_first(pools):
    pool = await pools()
    await flood(pool, "a", 3, prompt=range(30), new=99)
    await flood(pool, "b", 6, prompt=range(10))
    owner = await Owner.take(pool)
    assert await in_order(owner, ONE) == ["a0"]
    await owner.exchange(commit("a0/0", 0, *range(20)))
    await pool.release(owner.seat, owner.epoch)
    owner = await Owner.take(pool, name="next")
    # 30 + 2 * 16 tokens of a's are charged, as if nothing had happened
    assert await in_order(owner) == ["a0", "b0", "b1", "b2", "b3", "b4", "b5", "a1", "a2"]


async def test_the_turn_of_who_does_not_fit_is_not_another_s(pools):
    pool = await pools()
    await flood(pool, "a", 1, prompt=range(300))
    await flood(pool, "b", 1)
    owner = await Owner.take(pool)
    assert await in_order(owner, Room(9, 10, 16)) == []
    assert await in_order(owner, Room(9, 30, 16)) == ["a0", "b0"]


async def test_what_this_seat_can_never_hold_takes_no_turn(pools):
    pool = await pools()
    await Owner.take(pool, "larger")
    await pool.submit(of("a", "large", prompt=range(300)))
    await flood(pool, "a", 2)
    await flood(pool, "b", 2)
    owner = await Owner.take(pool)
    assert await in_order(owner, Room(9, 99, 16, slots=160)) == ["a0", "b0", "a1", "b1"]
    assert await in_order(owner, WIDE) == ["large"]


async def test_however_much_of_a_tenant_is_for_another_seat_others_have_their_turns_here(pools):
    pool = await pools()
    await Owner.take(pool, "larger")
    await pool.submit(of("a", "large", prompt=range(300), n=1100))
    await flood(pool, "b", 2, prompt=range(100))
    assert await in_order(await Owner.take(pool), Room(9, 99, 16, slots=160)) == ["b0", "b1"]
    assert await in_order(await Owner.take(pool, "another"), Room(1, 99, 16)) == ["large"]


# room with nothing free -> who of a, a, b, b, c is claimed
GUESTS = {
    "nobody is let in": (Room(0, 99, 16), []),
    "the first's tenant is here": (Room(0, 99, 16, guests=2, tenants=["a"]), []),
    "one each of other tenants": (Room(0, 99, 16, guests=9, tenants=["x"]), ["a0", "b0", "c0"]),
    "no more than there is place for": (Room(0, 99, 16, guests=2, tenants=["x"]), ["a0", "b0"]),
    "once a place is taken": (Room(1, 99, 16, guests=2, tenants=["x"]), ["a0", "b0", "c0"]),
    "never without blocks": (Room(0, 0, 16, guests=2, tenants=["x"]), []),
}


@pytest.mark.parametrize(("room", "who"), GUESTS.values(), ids=GUESTS)
async def test_who_has_nothing_at_a_seat_may_come_in_though_all_places_are_taken(pools, room, who):
    pool = await pools()
    for tenant, count in (("a", 2), ("b", 2), ("c", 1)):
        await flood(pool, tenant, count)
    assert await in_order(await Owner.take(pool), room) == who


async def test_lines_of_batches_are_no_guests(pools):
    pool = await pools()
    await flood(pool, "a", 1, priority=BATCH_CLASS)
    assert await in_order(await Owner.take(pool), Room(0, 99, 16, guests=2)) == []


# --- classes ---


async def test_an_earlier_class_goes_first_whoever_s_it_is(pools):
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
async def test_lines_wait_behind_all_others_however_short_the_ageing(pools, ageing):
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


async def test_lines_are_not_held_against_what_is_asked_for(pools):
    pool = await pools()
    await flood(pool, "a", 1)
    await flood(pool, "b", 1)
    owner = await Owner.take(pool)
    await ended(owner, await owner.claim())
    await pool.submit(of("b", "line", BATCH_CLASS, prompt=range(100)))
    await ended(owner, await owner.claim())
    for name in ("b1", "a1", "b2"):
        await pool.submit(of(name[0], name))
    assert await in_order(owner) == ["b1", "a1", "b2"]


@pytest.mark.parametrize(("first", "second", "order"), [("y", "z", ["la", "lb"]), ("z", "y", ["lb", "la"])])
async def test_what_is_cancelled_at_one_time_goes_by_name(pools, first, second, order):
    """In either order both come in among lines, and the one that does so first brings its own counter."""
    pool = await pools(grace=0.0)
    await pool.submit(of("a", "earlier", BATCH_CLASS, prompt=range(100)))
    owner = await Owner.take(pool)
    await ended(owner, await owner.claim())
    for tenant, asked, line in (("a", first, "la"), ("b", second, "lb")):
        await pool.submit(of(tenant, asked, gateway="dying"))
        await pool.submit(of(tenant, line, BATCH_CLASS))
    await pool.unregister("dying")
    assert await in_order(owner) == order


# --- nobody starves, nothing is left ---


@pytest.mark.parametrize("limits", [{}, RANKED])
async def test_a_tenant_is_not_starved_by_others_that_come_and_go(pools, limits):
    pool = await pools(**limits)
    await flood(pool, "a", 3, prompt=range(50))
    owner = await Owner.take(pool)
    order = []
    for i in range(12):
        await pool.submit(of("bcd"[i % 3], f"r{i}", prompt=range(50)))
        order += (ids := await owner.claim(ONE))
        await ended(owner, ids)
    assert {"a0/0", "a1/0", "a2/0"} <= set(order)


async def test_a_tenant_is_forgotten_some_time_after_its_last(server_pools):
    pool = await server_pools()
    await flood(pool, "a", 2)
    owner = await Owner.take(pool)
    ttl = ("PTTL", f"{pool._prefix}turn:a")
    assert await pool._server.command(*ttl) == -1
    await owner.claim()
    assert 0 < await pool._server.command(*ttl) <= 3_600_000
    await pool.release(owner.seat, owner.epoch)
    assert await pool._server.command(*ttl) == -1
    await ended(owner := await Owner.take(pool, name="next"), await owner.claim())
    assert 0 < await pool._server.command(*ttl) <= 3_600_000
    await flood(pool, "b", 1)
    await pool.cancel("b0")
    assert 0 < await pool._server.command("PTTL", f"{pool._prefix}turn:b") <= 3_600_000
    assert not {key for key in await keys(pool) if key.startswith(("waiting", "turns"))}


async def test_what_runs_on_after_its_tenant_was_forgotten_leaves_nothing(server_pools):
    pool = await server_pools()
    await flood(pool, "a", 1, new=99)
    owner = await Owner.take(pool)
    await owner.claim()
    await pool._server.command("DEL", f"{pool._prefix}turn:a")
    await owner.exchange(commit("a0/0", 0, *range(9)))
    assert 0 < await pool._server.command("PTTL", f"{pool._prefix}turn:a") <= 3_600_000
    await flood(pool, "b", 2)
    assert await in_order(owner) == ["b0", "b1"]


# --- properties ---

asked = st.tuples(
    st.integers(-2, 2) | st.just(BATCH_CLASS),
    st.integers(1, 40),  # tokens of the prompt
    st.integers(0, 200),  # seconds it waited already
    st.sampled_from("abc"),
)
rooms = st.builds(Room, st.integers(1, 3), st.integers(1, 9), st.just(16))


async def served(limits, crowd, offers):
    """Claims, by offer, of requests named by their place in the crowd."""
    pool = ReferencePool(WallClock(), Limits(**limits))
    for i, (priority, prompt, waited, tenant) in enumerate(crowd):
        await pool.submit(of(tenant, str(i), priority, float(waited), prompt=range(prompt)))
    owner = await Owner.take(pool)
    ranks = {id: sequence.rank for id, sequence in pool._sequences.items()}
    claims = [[claim.id for claim in (await owner.exchange(room=room)).claims] for room in offers]
    return ranks, claims


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from([{}, RANKED]), st.lists(asked, min_size=1, max_size=12), st.lists(rooms, max_size=12))
def test_one_tenant_alone_is_served_by_rank(limits, crowd, offers):
    ranks, claims = asyncio.run(served(limits, [(*one, "a") for *one, _ in crowd], offers))
    waiting = sorted(ranks, key=lambda id: ranks[id])
    for room, claimed in zip(offers, claims, strict=True):
        blocks, expected = room.blocks, []
        for id in waiting[: room.requests]:
            blocks -= -(-(crowd[int(id[:-2])][1] + 4) // 16)
            if blocks < 0:
                break
            expected.append(id)
        assert claimed == expected
        waiting = waiting[len(expected) :]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from([{}, RANKED]), st.lists(asked, min_size=1, max_size=12), st.lists(rooms, max_size=12))
def test_within_a_tenant_the_order_is_by_rank(limits, crowd, offers):
    ranks, claims = asyncio.run(served(limits, crowd, offers))
    for tenant in "abc":
        own = [ranks[id] for claimed in claims for id in claimed if crowd[int(id[:-2])][3] == tenant]
        assert own == sorted(own)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(asked, min_size=1, max_size=20), st.integers(1, 20))
def test_tenants_with_something_waiting_are_served_alike(crowd, count):
    """The bound of the article: two tenants that wait all the time differ by one request at most."""
    crowd = [(0, prompt, 0, tenant) for _, prompt, _, tenant in crowd]
    _, claims = asyncio.run(served({}, crowd, [ONE] * count))
    charged, left = dict.fromkeys("abc", 0), [tenant for *_, tenant in crowd]
    for [id] in filter(None, claims):
        _, prompt, _, tenant = crowd[int(id[:-2])]
        assert all(charged[tenant] <= charged[other] for other in left)
        charged[tenant] += prompt
        left.remove(tenant)
