"""How many engines a cluster is to have: surplus seats claim nothing, and are forgotten once their engines are gone."""

import pytest
from pool_helpers import NO_ROOM, ROOM, Owner, commit, counts, group, let_time_pass, rung

from services.messages import Room
from services.seats import ClusterSeats

HOUR = 3600.0


@pytest.fixture
async def two(pool):
    """The owners of the seats `c/0` and `c/1` of a cluster with two engines."""
    await pool.engines("c", 2)
    return [await Owner.take(pool, seat) for seat in ("c/0", "c/1")]


async def test_the_configured_number_counts_until_another_is_wanted(pool):
    assert await pool.engines("c", 2) == ClusterSeats(2, [])
    assert (await pool.engines("c", 3)).wanted == 2
    await pool.scale("c", 5)
    assert (await pool.engines("c", 3)).wanted == 5
    assert (await pool.overview()).wanted == {"c": 5}
    assert (await pool.engines("other", 1)).wanted == 1


async def test_a_configuration_that_has_changed_replaces_the_wanted_number(pool):
    await pool.engines("c", 2, announce=True)
    await pool.scale("c", 5)
    assert (await pool.engines("c", 2, announce=True)).wanted == 5  # a replica that was started again
    assert (await pool.engines("c", 3, announce=True)).wanted == 3
    assert (await pool.engines("c", 3)).wanted == 3


async def test_a_surplus_seat_claims_nothing_and_the_others_do(pool, two):
    await pool.scale("c", 1)
    await pool.submit(group("r"))
    reply = await two[1].exchange(room=ROOM)
    assert (reply.surplus, reply.claims) == (True, [])
    reply = await two[0].exchange(room=ROOM)
    assert (reply.surplus, [claim.id for claim in reply.claims]) == (False, ["r/0"])


async def test_a_surplus_seat_commits_what_it_runs(pool, two):
    await pool.submit(group("r"))
    assert await two[1].claim() == ["r/0"]
    await pool.scale("c", 1)
    reply = await two[1].exchange(commit("r/0", 0, 7))
    assert (reply.owned, reply.surplus, reply.foreign) == (True, True, [])
    await pool.release("c/1", two[1].epoch)
    (claim,) = (await two[0].exchange(room=ROOM)).claims
    assert claim.output == [7]


async def test_a_repeat_says_too_that_the_seat_is_surplus(pool, two):
    await two[1].exchange()
    await pool.scale("c", 1)
    assert (await two[1].repeat()).surplus


async def test_a_seat_may_be_wanted_again_before_it_is_removed(pool, two):
    await pool.scale("c", 1)
    assert (await two[1].exchange()).surplus
    await pool.scale("c", 2)
    await pool.submit(group("r"))
    assert await two[1].claim() == ["r/0"]
    await pool.scale("c", 1)
    await pool.scale("c", 2)
    await pool.release("c/1", two[1].epoch, removed=True)
    assert await pool.engines("c", 2) == ClusterSeats(2, [0, 1])


async def test_idle_seats_learn_at_once_that_the_number_has_changed(pool, two):
    await two[1].exchange(room=NO_ROOM, idle=True)
    await pool.scale("c", 1)
    assert await rung(pool, "c/1")


async def test_a_removed_seat_is_forgotten_with_all_that_is_known_of_its_engine(pool, two):
    await pool.scale("c", 1)
    await two[1].exchange(room=Room(0, 0, 4, longest=400))
    await pool.release("c/1", two[1].epoch)
    assert await pool.engines("c", 2) == ClusterSeats(1, [0, 1])
    assert (await pool.engines("c", 2)).surplus == [1]
    again = await pool.acquire("c/1", "next", 100)
    assert (again.granted, again.surplus) == (True, True)
    await pool.release("c/1", again.epoch, removed=True)
    assert await pool.engines("c", 2) == ClusterSeats(1, [0])
    await pool.release("c/1", again.epoch, removed=True)  # a repeat
    assert [seat.name for seat in (await pool.overview()).seats] == ["c/0"]
    await pool.submit(group("long", prompt=range(50), new=50))
    assert await two[0].claim(Room(8, 10, 4, longest=40)) == []
    assert await counts(pool) == (0, 0, 1)  # it has ended, because the engine that could hold it is gone


async def test_only_the_owner_forgets_a_seat(pool, two):
    await pool.scale("c", 1)
    await pool.release("c/1", "0:other", removed=True)
    assert (await pool.engines("c", 2)).surplus == [1]
    assert (await two[1].exchange()).owned


async def test_the_owner_of_a_held_surplus_seat_is_named(pool, two):
    await pool.scale("c", 1)
    grant = await pool.acquire("c/1", "another", 100)
    assert (grant.granted, grant.epoch, grant.surplus) == (False, two[1].epoch, True)


async def test_the_wanted_number_is_forgotten_with_the_last_seat(pool, two):
    await pool.scale("c", 5)
    for owner in two:
        await pool.release(owner.seat, owner.epoch)
    let_time_pass(pool, HOUR + 1)
    await pool.acquire("other/0", "other", 100)
    assert (await pool.overview()).wanted == {}
    assert (await pool.engines("c", 2)).wanted == 2
