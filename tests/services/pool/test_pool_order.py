"""The order of a tenant's requests, and which of them fit into a room."""

from dataclasses import replace

import pytest
from pool_helpers import Owner, commit, group

from services.messages import Room
from services.requests import BATCH_CLASS

WIDE = Room(99, 999, 16)
RANKED = {"order": "priority", "ageing": 60.0, "ttft_target": 10.0}


def asked(request, priority=0, ttft=0.0, waited=0.0, **more):
    return replace(group(request, **more), priority=priority, ttft=ttft, waited=waited)


async def claimed(pool, *submissions, room=WIDE):
    """Submit all groups, then return their requests in the order in which they are claimed."""
    for submission in submissions:
        await pool.submit(submission)
    return [id.rpartition("/")[0] for id in await (await Owner.take(pool)).claim(room)]


# --- rank ---


async def test_an_earlier_class_goes_first(pools):
    late, plain, early = asked("late", 8), asked("plain"), asked("early", -8)
    assert await claimed(await pools(**RANKED), late, plain, early) == ["early", "plain", "late"]


async def test_within_a_class_the_least_slack_goes_first(pools):
    order = [asked("patient", ttft=30.0), asked("default"), asked("older", ttft=30.0, waited=25.0)]
    assert await claimed(await pools(**RANKED), *order) == ["older", "default", "patient"]


async def test_a_request_that_waited_longer_by_the_ageing_goes_before_the_next_earlier_class(pools):
    order = [
        asked("almost", 1, waited=50.0),
        asked("new"),
        asked("aged", 1, waited=70.0),
        asked("two", 2, waited=140.0),
    ]
    assert await claimed(await pools(**RANKED), *order) == ["two", "aged", "new", "almost"]


async def test_order_by_arrival_ignores_classes_and_targets(pools):
    order = [asked("late", 8, 50.0), asked("plain"), asked("early", -8, 0.1), asked("lost", 8, waited=5.0)]
    assert await claimed(await pools(), *order) == ["lost", "late", "plain", "early"]


async def test_a_group_s_choices_stay_in_order(pools):
    pool = await pools(**RANKED)
    await pool.submit(asked("r", n=12))
    assert await (await Owner.take(pool)).claim(WIDE) == [f"r/{i}" for i in range(12)]


@pytest.mark.parametrize("limits", [{}, RANKED])
async def test_a_claim_carries_what_ranks_it(pools, limits):
    pool = await pools(**limits)
    await pool.submit(asked("own", -3, 2.5, 1000.0, tenant="é"))
    await pool.submit(asked("none", waited=500.0))
    own, none = (await (await Owner.take(pool)).exchange(room=WIDE)).claims
    assert (own.priority, own.ttft, own.tenant) == (-3, 2.5, "é")
    assert (none.priority, none.ttft, none.tenant) == (0, 10.0 if limits else 0.0, "default")
    assert own.waited - none.waited == pytest.approx(500, abs=60)
    more = -3 * 60 + 2.5 - 10 if limits else 0
    assert own.rank - none.rank == pytest.approx(more - (own.waited - none.waited), abs=0.01)


@pytest.mark.parametrize("limits", [{}, RANKED])
async def test_a_requeued_request_keeps_its_place(pools, limits):
    pool = await pools(**limits)
    for submission in (asked("a", 1), asked("b", 1), asked("c")):
        await pool.submit(submission)
    owner = await Owner.take(pool)
    before = (await owner.exchange(room=Room(2, 99, 16))).claims
    await owner.exchange(*(commit(claim.id, 0, 7) for claim in before))
    await pool.submit(asked("d"))
    await pool.release(owner.seat, owner.epoch)
    after = (await (await Owner.take(pool, name="next")).exchange(room=WIDE)).claims
    assert [claim.id[0] for claim in after] == list("cdab" if limits else "abcd")
    again = {claim.id: claim for claim in after}
    for claim in before:
        assert again[claim.id] == replace(claim, output=[7], waited=again[claim.id].waited)
        assert again[claim.id].waited >= claim.waited


async def test_a_repeat_claims_the_same(pools):
    pool = await pools(**RANKED)
    await pool.submit(asked("a", 2, 5.0))
    owner = await Owner.take(pool)
    [first] = (await owner.exchange(room=WIDE)).claims
    [again] = (await owner.repeat(room=WIDE)).claims
    assert again == replace(first, waited=again.waited)


# --- room ---


async def test_a_request_takes_blocks_for_its_tokens_or_for_its_maximum_length(pools):
    pool = await pools()
    for name in "abc":
        await pool.submit(group(name, prompt=range(30), new=40))
    assert await (await Owner.take(pool)).claim(Room(9, 10, 16)) == ["a/0", "b/0"]
    assert await (await Owner.take(pool, "other")).claim(Room(9, 2, 16, whole=False)) == ["c/0"]


async def test_existing_output_takes_blocks(pools):
    pool = await pools()
    await pool.submit(group("r", prompt=range(30), new=40))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 1, 2, 3))
    await pool.release(owner.seat, owner.epoch)
    owner = await Owner.take(pool, name="next")
    assert await owner.claim(Room(9, 2, 16, whole=False)) == []
    assert await owner.claim(Room(9, 3, 16, whole=False)) == ["r/0"]


# room -> which of early (class -1), plain (0) and late (1) are claimed; each takes one block
GIVEN = {
    "nothing is given": (Room(1, 9, 16), ["early"]),
    "a place of the next class": (Room(0, 9, 16, yields=[(0, 1, 0)]), ["early"]),
    "blocks of the next class": (Room(9, 0, 16, yields=[(0, 0, 1)]), ["early"]),
    "a place, but no block": (Room(0, 0, 16, yields=[(0, 1, 0)]), []),
    "a block, but no place": (Room(0, 0, 16, yields=[(0, 0, 1)]), []),
    "of its own class": (Room(0, 0, 16, yields=[(-1, 5, 5)]), []),
    "of an earlier class": (Room(0, 0, 16, yields=[(-2, 5, 5)]), []),
    "of the latest class, to two": (Room(0, 0, 16, yields=[(1, 2, 2)]), ["early", "plain"]),
    "never to as late a class": (Room(0, 0, 16, yields=[(1, 9, 9)]), ["early", "plain"]),
    "of two classes": (Room(0, 0, 16, yields=[(1, 1, 1), (0, 1, 1)]), ["early"]),
    "the latest class gives first": (Room(0, 0, 16, yields=[(2, 2, 2), (1, 1, 1), (0, 1, 1)]), ["early", "plain"]),
    "of two classes, to three": (Room(0, 0, 16, yields=[(2, 3, 3), (1, 1, 1), (0, 1, 1)]), ["early", "plain", "late"]),
    "after what is owed": (Room(-2, -2, 16, yields=[(2, 3, 3)]), ["early"]),
    "less than what is owed": (Room(-2, -2, 16, yields=[(2, 2, 2)]), []),
}


@pytest.mark.parametrize(("room", "who"), GIVEN.values(), ids=GIVEN)
async def test_what_later_classes_yield_is_room_too(pools, room, who):
    pool = await pools(**RANKED)
    assert await claimed(pool, asked("late", 1), asked("plain"), asked("early", -1), room=room) == who


# --- lines of batches ---


@pytest.mark.parametrize("limits", [{}, RANKED])
async def test_lines_of_batches_wait_behind_all_others(pools, limits):
    first, lost = asked("line", BATCH_CLASS), asked("lost line", BATCH_CLASS, waited=5.0)
    order = [first, asked("line with target", BATCH_CLASS, 0.1), lost, asked("late", 8, 3600.0), asked("plain")]
    assert (await claimed(await pools(**limits), *order))[2:] == ["lost line", "line", "line with target"]


@pytest.mark.parametrize("limits", [{}, RANKED])
async def test_what_lines_of_batches_hold_is_room_for_all_others(pools, limits):
    lent = Room(0, 0, 16, yields=[(BATCH_CLASS, 2, 99)])
    order = [asked("line", BATCH_CLASS), asked("late", 8), asked("plain"), asked("third", 8)]
    assert set(await claimed(await pools(**limits), *order, room=lent)) == {"late", "plain"}
