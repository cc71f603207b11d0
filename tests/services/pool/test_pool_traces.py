"""What schedulers and gateways learn of traced requests: their context, and how they left the seat before."""

from dataclasses import replace

import pytest
from pool_helpers import ROOM, Owner, commit, group

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def claim(owner):
    (found,) = (await owner.exchange(room=ROOM)).claims
    return found


async def test_the_context_comes_with_the_claim_and_with_the_group(pool):
    await pool.submit(replace(group("r"), trace=CONTEXT))
    found = await claim(await Owner.take(pool))
    assert (found.trace, found.before) == (CONTEXT, None)
    assert (await pool.group("r")).trace == CONTEXT


async def test_a_request_without_a_context_is_not_traced(pool):
    await pool.submit(group("r"))
    owner = await Owner.take(pool)
    assert (await claim(owner)).trace == ""
    await pool.release(owner.seat, owner.epoch, [])
    assert (await claim(await Owner.take(pool))).before is None
    assert (await pool.group("r")).trace == ""


@pytest.mark.parametrize("taken", [True, False])
async def test_the_next_owner_learns_of_the_tenure_before(pool, taken):
    await pool.submit(replace(group("r"), trace=CONTEXT))
    first = await Owner.take(pool)
    await claim(first)
    await first.exchange(commit("r/0", 0, 5))
    if taken:
        second = await Owner.take(pool, name="next", dead=first.epoch)
    else:
        await pool.release(first.seat, first.epoch, [])
        second = await Owner.take(pool, name="next")
    found = await claim(second)
    assert found.trace == CONTEXT
    before = found.before
    assert (before.seat, before.epoch, before.taken) == (first.seat, first.epoch, taken)
    assert 0 <= before.left <= before.claimed <= found.waited
