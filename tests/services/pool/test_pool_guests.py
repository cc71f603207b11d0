"""Guests: a tenant that has nothing at a seat gets a place there although all places are taken."""

import pytest
from pool_helpers import Owner
from tenant_helpers import flood, in_order

from services.messages import Room
from services.requests import BATCH_CLASS

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
