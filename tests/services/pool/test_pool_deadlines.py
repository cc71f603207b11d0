"""Deadlines: a request of which no sequence was claimed in time ends; once one was claimed, it has no deadline."""

from dataclasses import replace

from pool_helpers import ROOM, Owner, all_events, commit, counts, group, keys, let_time_pass, rung, stored

from services.messages import TokenEvent
from services.pool.limits import Limits
from services.pool.scripts import TIMEOUT

LONG = 1000.0


def due(name, in_seconds=LONG, n=1, **more):
    """A group whose deadline is so many seconds from now; negative: it has passed."""
    return replace(group(name, n), queue_timeout=LONG, waited=LONG - in_seconds, **more)


async def test_an_overdue_group_ends_and_is_not_claimed(pool):
    owner = await Owner.take(pool)
    await pool.submit(due("late", -1, n=2))
    await pool.submit(due("in-time"))
    await pool.submit(group("any-time"))
    assert await owner.claim() == ["in-time/0", "any-time/0"]
    assert await all_events(pool) == [TokenEvent(f"late/{i}", 0, None, end=TIMEOUT) for i in range(2)]
    assert (await stored(pool, "late/0")).end == TIMEOUT
    assert await counts(pool) == (0, 2, 2)
    assert (await pool.overview()).counters["orca:timed_out_requests"] == 2


async def test_it_also_ends_while_no_seat_claims(pool):
    await pool.submit(due("by-a-gateway", -1))
    await pool.heartbeat("gateway", 1, {})
    assert (await stored(pool, "by-a-gateway/0")).end == TIMEOUT
    await pool.submit(due("by-a-spare", -1))
    await pool.acquire("seat", "spare", 100)
    assert (await stored(pool, "by-a-spare/0")).end == TIMEOUT


async def test_a_deadline_passes_while_the_group_waits(pool):
    await pool.submit(replace(group("soon"), queue_timeout=0.1))
    await pool.submit(replace(group("later"), queue_timeout=LONG))
    let_time_pass(pool, 0.1)
    await pool.heartbeat("gateway", 1, {})
    assert (await stored(pool, "soon/0")).end == TIMEOUT
    assert (await stored(pool, "later/0")).end is None


async def test_a_requeued_group_has_no_deadline(pool):
    """Nor do its choices that were never claimed: another choice of the request was."""
    owner = await Owner.take(pool)
    await pool.submit(replace(group("r", n=2), queue_timeout=1.0))
    assert await owner.claim(replace(ROOM, requests=1)) == ["r/0"]
    await pool.release(owner.seat, owner.epoch)
    let_time_pass(pool, 1.0)
    await pool.heartbeat("gateway", 1, {})
    assert await (await Owner.take(pool)).claim() == ["r/0", "r/1"]


async def test_a_group_put_back_with_tokens_has_no_deadline(pool):
    """The pool had lost it, and its gateway puts it back."""
    lost = due("r", -1, n=2)
    begun = [replace(lost.sequences[0], output=[5]), lost.sequences[1]]
    await pool.submit(replace(lost, sequences=begun))
    assert await (await Owner.take(pool)).claim() == ["r/0", "r/1"]


async def test_a_repeated_submit_does_not_change_the_deadline(pool):
    await pool.submit(group("r"))
    await pool.submit(due("r", -1))
    await pool.heartbeat("gateway", 1, {})
    assert (await stored(pool, "r/0")).end is None


async def test_the_end_of_the_first_in_the_queue_wakes_idle_seats(pool):
    """It may have been too large for their free blocks."""
    owner = await Owner.take(pool)
    await owner.exchange(idle=True)
    await pool.submit(due("large", -1))
    await pool.wait_bell(owner.seat, 1)
    await owner.exchange(idle=True, room=replace(ROOM, requests=0))
    await pool.submit(due("another", -1))
    await pool.wait_bell(owner.seat, 1)
    await pool.heartbeat("gateway", 1, {})
    assert (await stored(pool, "another/0")).end == TIMEOUT


async def test_many_overdue_groups_end_over_several_calls_and_nothing_is_claimed_before_the_last(server_pools):
    pool = await server_pools(Limits())
    for i in range(5):
        await pool.submit(due(f"late{i}", -1, n=400))
    await pool.submit(group("r"))
    owner = await Owner.take(pool)
    assert await counts(pool) == (1201, 0, 800)
    assert (await owner.exchange(room=ROOM, idle=True)).claims == []
    assert await counts(pool) == (401, 0, 1600)
    assert await rung(pool, owner.seat)  # the seat should call again at once
    assert await owner.claim() == ["r/0"]
    assert await counts(pool) == (0, 1, 2000)


async def test_a_deadline_leaves_no_key(server_pools):
    pool = await server_pools()
    owner = await Owner.take(pool)
    for name in ("cancelled", "claimed", "overdue"):
        await pool.submit(due(name, -1 if name == "overdue" else LONG))
    await pool.cancel("cancelled")
    await owner.claim()
    await owner.exchange(commit("claimed/0", 0, 5))
    assert "deadlines" not in await keys(pool)
