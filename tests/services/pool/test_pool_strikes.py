"""Strikes: a sequence under which the engine dies again and again ends alone."""

import pytest
from pool_helpers import CANCELLED, ROOM, Owner, all_events, commit, counts, group, stored

from services.messages import End, TokenEvent
from services.requests import FinishReason

POISONED = End(FinishReason.ERROR, error="the engine died, or the scheduler failed, 3 times while it ran this request")


@pytest.fixture
async def lives(pool):
    """`r/0` and `s/0` wait. Lives of an engine: each claims all and gives back what it struck."""
    await pool.submit(group("r"))
    await pool.submit(group("s"))

    async def live(*struck, commits=()):
        """Strikes of all claims by their ids."""
        owner = await Owner.take(pool)
        claims = (await owner.exchange(room=ROOM)).claims
        await owner.exchange(*commits)
        await pool.release(owner.seat, owner.epoch, struck)
        return {claim.id: claim.strikes for claim in claims}

    return live


async def test_the_third_strike_ends_a_sequence_and_no_other(pool, lives):
    assert await lives("r/0", "s/0") == {"r/0": 0, "s/0": 0}
    assert await lives("r/0") == {"r/0": 1, "s/0": 1}
    assert await lives("r/0") == {"r/0": 2, "s/0": 1}
    assert await lives() == {"s/0": 1}
    assert (await stored(pool, "r/0")).end == POISONED
    assert await all_events(pool) == [TokenEvent("r/0", 0, None, end=POISONED)]
    assert await counts(pool) == (1, 0, 1)
    assert (await pool.overview()).counters["orca:poisoned_requests"] == 1


async def test_a_token_clears_a_sequence(pool, lives):
    await lives("r/0")
    await lives("r/0", commits=[commit("r/0", 0, 5)])
    assert (await lives("r/0"))["r/0"] == 1
    assert (await lives(commits=[commit("r/0", 1, 6)]))["r/0"] == 2
    assert (await lives("r/0"))["r/0"] == 0
    assert (await lives("r/0"))["r/0"] == 1
    assert (await stored(pool, "r/0")).end is None


async def test_a_death_counts_once_for_each_sequence_of_the_seat(pool, lives):
    assert await lives("r/0", "r/0", "never/0") == {"r/0": 0, "s/0": 0}
    assert await lives() == {"r/0": 1, "s/0": 0}
    other = await Owner.take(pool, "other")
    await pool.release(other.seat, other.epoch, ["r/0"])
    assert await lives() == {"r/0": 1, "s/0": 0}


async def test_only_the_owner_strikes(pool, lives):
    owner = await Owner.take(pool)
    await owner.claim()
    await pool.release(owner.seat, "0:stale", ["r/0"])
    await pool.release(owner.seat, owner.epoch, ["r/0"])
    await pool.release(owner.seat, owner.epoch, ["r/0"])
    assert await lives() == {"r/0": 1, "s/0": 0}


async def test_a_cancelled_sequence_ends_as_cancelled(pool, lives):
    await lives("r/0")
    await lives("r/0")
    owner = await Owner.take(pool)
    await owner.claim()
    await pool.cancel("r")
    await pool.release(owner.seat, owner.epoch, ["r/0"])
    assert (await stored(pool, "r/0")).end == CANCELLED
