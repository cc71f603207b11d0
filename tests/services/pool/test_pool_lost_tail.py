"""A server that lost the tail of its file: what owners and gateways, which hold more, tell it, and its replies."""

from dataclasses import replace

import pytest
from pool_helpers import CANCELLED, ROOM, SEAT, STOP, Owner, commit, counts, group, rung, stored, timeless

from services.messages import Logprobs, Room


@pytest.fixture
async def owner(pool):
    """An owner that runs `r/0`, `r/1` and `r/2`; `s/0` waits."""
    await pool.submit(group("r", n=3))
    await pool.submit(group("s"))
    owner = await Owner.take(pool)
    await owner.claim(Room(3, 64, 16))
    return owner


# --- the owner of a seat ---


async def test_sequences_that_the_owner_does_not_hold_are_requeued_at_their_rank(pool, owner):
    await owner.exchange(commit("r/1", 0, 5, 6))
    await pool.cancel("r")
    reply = await owner.exchange(holds=["r/0"])
    assert (reply.foreign, reply.have, reply.cancelled) == ([], {}, ["r/0"])
    assert [(await stored(pool, f"r/{i}")).end for i in range(3)] == [None, CANCELLED, CANCELLED]


async def test_requeued_sequences_can_be_claimed_at_once(pool, owner):
    await owner.exchange(commit("r/1", 0, 5, 6))
    call = {"holds": ["r/0", "r/2"], "room": Room(1, 64, 16)}
    reply = await owner.exchange(**call)
    assert [(claim.id, claim.output) for claim in reply.claims] == [("r/1", [5, 6])]
    assert timeless(await owner.repeat(**call)) == timeless(reply)
    assert await counts(pool) == (1, 3, 0)


async def test_requeued_sequences_wake_other_seats(pool, owner):
    other = await Owner.take(pool, "other")
    assert await other.claim() == ["s/0"]
    await other.exchange(idle=True)
    await owner.exchange(holds=["r/0", "r/1"])
    assert await rung(pool, "other")


async def test_held_sequences_that_are_not_the_seats_are_foreign(pool, owner):
    reply = await owner.exchange(commit("r/0", 0, 5, end=STOP), holds=["r/0", "r/1", "r/2", "s/0", "never/0"])
    assert reply.foreign == ["never/0", "s/0"]
    assert (await owner.repeat()).foreign == ["never/0", "s/0"]
    assert await counts(pool) == (1, 2, 1)


async def test_missing_tokens_of_requeued_sequences_are_not_requested(pool, owner):
    reply = await owner.exchange(commit("r/0", 2, 5), commit("r/1", 2, 5, end=STOP), holds=["r/0", "r/2"])
    assert (reply.have, reply.foreign) == ({"r/0": 0}, [])
    assert await counts(pool) == (2, 2, 0)


async def test_a_skipped_call_number_shows_that_exchanges_were_lost(pool, owner):
    owner.call += 1
    reply = await owner.exchange(commit("r/0", 0, 5), room=ROOM, idle=True)
    assert (reply.lost, reply.claims) == (True, [])
    assert await owner.repeat() == reply
    assert (await stored(pool, "r/0")).tokens == [5]
    await pool.submit(group("t"))
    assert not await rung(pool, SEAT)
    reply = await owner.exchange(room=ROOM, holds=["r/0", "r/1", "r/2"])
    assert (reply.lost, [claim.id for claim in reply.claims]) == (False, ["s/0", "t/0"])


async def test_a_skipped_call_number_does_not_matter_with_holds(pool, owner):
    owner.call += 5
    reply = await owner.exchange(room=ROOM, holds=["r/0", "r/1", "r/2"])
    assert (reply.lost, [claim.id for claim in reply.claims]) == (False, ["s/0"])


async def test_a_skipped_heartbeat_shows_that_events_may_be_missing(pool):
    assert [await pool.heartbeat("g", call, {}) for call in (1, 2, 4, 4, 5)] == [False, True, False, False, True]


# --- requests that a gateway puts back ---


async def test_a_request_goes_on_from_the_tokens_of_its_gateway(pool):
    lost = group("r", n=2, logprobs=1)
    logprobs = [Logprobs(-1.0, [(7, -1.0)]), Logprobs(-2.0, [])]
    lost.sequences[0] = replace(lost.sequences[0], output=[7, 8], logprobs=logprobs)
    await pool.submit(lost)
    await pool.submit(lost)
    snapshot = await stored(pool, "r/0")
    assert (snapshot.tokens, snapshot.logprobs, snapshot.end) == ([7, 8], logprobs, None)
    owner = await Owner.take(pool)
    assert [claim.output for claim in (await owner.exchange(room=ROOM)).claims] == [[7, 8], []]
    await owner.exchange(commit("r/0", 1, 9, 9, logprobs=[logprobs[0]] * 2), commit("r/1", 0, 4))
    _, events = await pool.read_events("gateway", "0", 1)
    assert [(e.id, e.index, e.token) for e in events] == [("r/0", 2, 9), ("r/1", 0, 4)]


async def test_a_complete_output_waits_for_the_stop_check(pool):
    lost = group("r", new=2)
    lost.sequences[0] = replace(lost.sequences[0], output=[7, 8])
    await pool.submit(lost)
    assert await counts(pool) == (1, 0, 0)
