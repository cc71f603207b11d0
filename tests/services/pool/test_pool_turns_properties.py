"""Turns, as properties of random requests on the reference pool."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from pool_helpers import Clock, Owner
from tenant_helpers import ONE, RANKED, of

from services.messages import Room
from services.pool.limits import Limits
from services.pool.reference.pool import ReferencePool
from services.requests import BATCH_CLASS

asked = st.tuples(
    st.integers(-2, 2) | st.just(BATCH_CLASS),
    st.integers(1, 40),  # tokens of the prompt
    st.integers(0, 200),  # seconds that it has waited already
    st.sampled_from("abc"),
)
rooms = st.builds(Room, st.integers(1, 3), st.integers(1, 9), st.just(16))


async def served(limits, crowd, offers):
    """Ranks of all requests, which are named by their index in the crowd, and the claims of each offer."""
    pool = ReferencePool(Clock(), Limits(**limits))
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
def test_tenants_with_waiting_requests_are_served_equally(crowd, count):
    """The bound of the VTC paper: two tenants that wait all the time differ by one request at most."""
    crowd = [(0, prompt, 0, tenant) for _, prompt, _, tenant in crowd]
    _, claims = asyncio.run(served({}, crowd, [ONE] * count))
    charged, left = dict.fromkeys("abc", 0), [tenant for *_, tenant in crowd]
    for [id] in filter(None, claims):
        _, prompt, _, tenant = crowd[int(id[:-2])]
        assert all(charged[tenant] <= charged[other] for other in left)
        charged[tenant] += prompt
        left.remove(tenant)
