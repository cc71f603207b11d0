"""What the build before wrote is read right: two builds may serve one pool at once."""

from dataclasses import replace

import pytest
from pool_helpers import ROOM, STOP, Owner, commit, group, let_time_pass

from services.pool.limits import Limits
from services.pool.packing import pack, unpack
from services.requests import BATCH_CLASS

ORDERS = {"fcfs": Limits(), "priority": Limits(order="priority", ageing=60.0)}
CLASSES = {"a": (0, 2, BATCH_CLASS, 0), "b": (1, 0, 0, 1), "c": (BATCH_CLASS, 2, 0, 0)}


async def submit(pool):
    """Requests of three tenants, in turn, with classes that change."""
    for i in range(4):
        for tenant, classes in CLASSES.items():
            await pool.submit(replace(group(f"{tenant}{i}", tenant=tenant), priority=classes[i]))
            let_time_pass(pool, 4)


async def as_the_build_before(pool):
    """Leave of what was submitted what the build before wrote: `asked` had five values."""
    run, prefix = pool._server.command, pool._prefix
    for tenant in CLASSES:
        for i in range(4):
            asked = unpack(await run("HGET", f"{prefix}seq:{tenant}{i}/0", "asked"))
            await run("HSET", f"{prefix}seq:{tenant}{i}/0", "asked", pack(asked[:5]))


async def served(pool):
    """The ids in the order in which a seat claims them one by one, with the pool's bytes after each end."""
    owner, found = await Owner.take(pool), []
    while ids := await owner.claim(replace(ROOM, requests=1)):
        await owner.exchange(commit(ids[0], 0, 5, end=STOP))
        found.append((ids[0], (await pool.overview()).bytes))
    return found


@pytest.mark.parametrize("order", ORDERS)
async def test_its_requests_are_claimed_in_order_and_free_their_bytes(server_pools, order):
    now, before = [await server_pools(ORDERS[order]) for _ in range(2)]
    for pool in (now, before):
        await submit(pool)
    await as_the_build_before(before)
    expected = await served(now)
    assert len(expected) == 12
    assert await served(before) == expected
