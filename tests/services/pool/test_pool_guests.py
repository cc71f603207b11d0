"""Guests: a tenant that has nothing at a seat gets a place there although all places are taken."""

import pytest
from pool_helpers import Owner
from tenant_helpers import flood, in_order

from services.messages import Room
from services.requests import BATCH_CLASS

# room without free places -> which of a, a, b, b, c are claimed
GUESTS = {
    "no guests": (Room(0, 99, 16), []),
    "the first tenant is present": (Room(0, 99, 16, guests=2, tenants=["a"]), []),
    "one for each other tenant": (Room(0, 99, 16, guests=9, tenants=["x"]), ["a0", "b0", "c0"]),
    "no more than the number of guests": (Room(0, 99, 16, guests=2, tenants=["x"]), ["a0", "b0"]),
    "once a place is taken": (Room(1, 99, 16, guests=2, tenants=["x"]), ["a0", "b0", "c0"]),
    "never without blocks": (Room(0, 0, 16, guests=2, tenants=["x"]), []),
}


@pytest.mark.parametrize(("room", "who"), GUESTS.values(), ids=GUESTS)
async def test_a_tenant_without_sequences_at_a_seat_may_enter_although_all_places_are_taken(pools, room, who):
    pool = await pools()
    for tenant, count in (("a", 2), ("b", 2), ("c", 1)):
        await flood(pool, tenant, count)
    assert await in_order(await Owner.take(pool), room) == who


async def test_lines_of_batches_are_not_guests(pools):
    pool = await pools()
    await flood(pool, "a", 1, priority=BATCH_CLASS)
    assert await in_order(await Owner.take(pool), Room(0, 99, 16, guests=2)) == []
