"""Requests of several tenants, and the order in which a seat claims them."""

from dataclasses import replace

from pool_helpers import STOP, commit, group

from services.messages import Room

ONE, WIDE = Room(1, 999, 16), Room(99, 999, 16)
RANKED = {"order": "priority", "ageing": 60.0, "ttft_target": 10.0}


def of(tenant, request, priority=0, waited=0.0, **more):
    return replace(group(request, tenant=tenant, **more), priority=priority, waited=waited)


async def flood(pool, tenant, count, **more):
    for i in range(count):
        await pool.submit(of(tenant, f"{tenant}{i}", **more))


async def in_order(owner, room=WIDE):
    """Requests in the order in which they are claimed."""
    return [id.rpartition("/")[0] for id in await owner.claim(room)]


async def end(owner, ids, tokens=4):
    """The owner ends these sequences, with so many tokens each."""
    await owner.exchange(*(commit(id, 0, *range(tokens), end=STOP) for id in ids))
