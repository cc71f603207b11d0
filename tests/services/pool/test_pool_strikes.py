"""Strikes: a sequence that kills engines repeatedly is ended, and no other."""

from dataclasses import replace

import pytest
from pool_helpers import CANCELLED, ROOM, Owner, all_events, commit, counts, group, let_time_pass, stored

from services.messages import End, TokenEvent
from services.requests import BATCH_CLASS, FinishReason

POISONED = End(FinishReason.ERROR, error="the engine died, or the scheduler failed, 3 times while it ran this request")

LOST = End(
    FinishReason.ERROR, error="the process that ran this request died or fell silent 6 times, without a token between"
)
POD = "pod"


@pytest.fixture
async def lives(pool):
    """`r/0` and `s/0` wait. Each call is the life of an engine: it claims all and dies in an iteration of some."""
    await pool.submit(group("r"))
    await pool.submit(group("s"))

    async def live(*struck, commits=()):
        """The strikes of all claims, by id."""
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


async def test_a_committed_token_clears_strikes(pool, lives):
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


@pytest.fixture
async def pods(pool):
    """Each call is the life of a pod: it claims all sequences and dies without a report."""
    held = None

    async def pod(*commits):
        """The strikes of all claims, by id."""
        nonlocal held
        held = await Owner.take(pool, POD, dead=held and held.epoch)
        claims = (await held.exchange(room=ROOM)).claims
        await held.exchange(*commits)
        return {claim.id: claim.strikes for claim in claims}

    return pod


async def test_a_request_that_kills_pods_is_ended_and_no_other(pool, pods):
    """Other sequences of the pod are struck with it until it runs alone."""
    await pool.submit(group("deadly"))
    for name in ("a", "b"):
        await pool.submit(group(name))
    assert [(await pods())["deadly/0"] for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert await pods() == {"a/0": 2, "b/0": 2}
    assert (await stored(pool, "deadly/0")).end == LOST
    assert [event.end for event in await all_events(pool)] == [LOST]
    assert (await pool.overview()).counters["orca:poisoned_requests"] == 1
    assert await pods(commit("a/0", 0, 5)) == {"a/0": 3, "b/0": 2}
    assert await pods() == {"a/0": 0, "b/0": 3}


async def test_the_suspect_that_ran_alone_is_struck_although_others_rank_before_it(pool, pods):
    for name in ("a", "deadly"):
        await pool.submit(group(name))
    for _ in range(2):
        await pods()
    assert await pods(commit("a/0", 0, 5)) == {"a/0": 2, "deadly/0": 2}  # its token shows that "a" is not the cause
    assert [(await pods())["deadly/0"] for _ in range(3)] == [3, 4, 5]
    assert await pods() == {"a/0": 0}


async def test_lines_of_batches_wait_while_others_run_and_are_not_struck(pool, pods):
    await pool.submit(replace(group("line"), priority=BATCH_CLASS))
    await pool.submit(group("deadly"))
    for _ in range(6):
        await pods()
    assert await pods() == {"line/0": 0}
    assert await pods() == {"line/0": 1}


async def test_strikes_of_both_kinds_make_a_suspect_and_each_kind_has_its_limit(pool, pods, lives):
    for _ in range(5):
        await pods()
    held = (await pool.acquire(POD, "another", 100)).epoch
    await pool.release(POD, held)
    assert (await lives("r/0"))["r/0"] == 4
    assert (await lives("r/0"))["r/0"] == 5
    assert (await stored(pool, "r/0")).end is None
    await lives("r/0")
    assert (await stored(pool, "r/0")).end == POISONED


async def test_an_owner_that_releases_its_seat_gives_no_strikes(pool, lives):
    for _ in range(7):
        assert await lives() == {"r/0": 0, "s/0": 0}


async def test_an_outage_gives_no_strikes(pool):
    """Leases start again after an outage of the pool's server or of the whole machine."""
    await pool.submit(group("r"))
    owner = await Owner.take(pool, lease=5.0)
    await owner.claim()
    for _ in range(7):
        let_time_pass(pool, 1000)
        assert (await owner.exchange()).owned
    await pool.release(owner.seat, owner.epoch)
    assert [claim.strikes for claim in (await (await Owner.take(pool)).exchange(room=ROOM)).claims] == [0]


async def test_an_expired_lease_gives_a_soft_strike(pool):
    await pool.submit(group("r"))
    await (await Owner.take(pool, lease=0.1)).claim()
    witness = await Owner.take(pool, "witness")
    claims = []
    while not claims:  # calls arrive all the time, so this is no outage
        let_time_pass(pool, 0.04)
        claims = (await witness.exchange(room=ROOM)).claims
    assert [claim.strikes for claim in claims] == [1]
