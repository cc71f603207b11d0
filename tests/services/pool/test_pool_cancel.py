"""Cancel: waiting sequences end at once, running ones stay listed until their terminal event."""

from pool_helpers import CANCELLED, ROOM, STOP, Owner, all_events, commit, counts, group, rung, stored

from services.messages import Room, TokenEvent


async def test_a_waiting_group_ends_at_once(pool):
    await pool.submit(group("r", n=2))
    assert await pool.cancel("r")
    assert await counts(pool) == (0, 0, 2)
    assert await all_events(pool) == [TokenEvent(f"r/{i}", 0, None, end=CANCELLED) for i in range(2)]
    assert await (await Owner.take(pool)).claim() == []


async def test_a_running_sequence_is_listed_until_its_end(pool):
    await pool.submit(group("r"))
    owner = await Owner.take(pool)
    await owner.claim()
    assert await pool.cancel("r")
    assert await counts(pool) == (0, 1, 0)
    assert (await owner.exchange(commit("r/0", 0, 5))).cancelled == ["r/0"]
    assert (await owner.exchange()).cancelled == ["r/0"]
    assert (await owner.repeat()).cancelled == ["r/0"]
    assert (await owner.exchange(commit("r/0", 1, end=CANCELLED))).cancelled == []
    assert await counts(pool) == (0, 0, 1)
    assert await all_events(pool) == [TokenEvent("r/0", 0, 5), TokenEvent("r/0", 1, None, end=CANCELLED)]


async def test_a_group_of_which_half_runs(pool):
    await pool.submit(group("r", n=3))
    owner = await Owner.take(pool)
    await owner.claim(Room(2, 64, 16))
    await owner.exchange(commit("r/0", 0, 1, end=STOP))
    assert await pool.cancel("r")
    assert await counts(pool) == (0, 1, 2)
    assert [(await stored(pool, f"r/{i}")).end for i in range(3)] == [STOP, None, CANCELLED]
    assert (await owner.exchange(room=ROOM)).cancelled == ["r/1"]


async def test_unknown_and_ended_groups_cannot_be_cancelled(pool):
    assert not await pool.cancel("unknown")
    await pool.submit(group("r"))
    assert await pool.cancel("r")
    assert not await pool.cancel("r")
    assert await counts(pool) == (0, 0, 1)


async def test_a_cancelled_sequence_ends_with_its_owner(pool):
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim(Room(1, 64, 16))
    await owner.exchange(commit("r/0", 0, 5))
    await pool.cancel("r")
    await pool.release(owner.seat, owner.epoch)
    assert await counts(pool) == (0, 0, 2)
    snapshot = await stored(pool, "r/0")
    assert (snapshot.tokens, snapshot.end) == ([5], CANCELLED)
    assert (await all_events(pool))[-1] == TokenEvent("r/0", 1, None, end=CANCELLED)


async def test_cancel_wakes_an_idle_seat(pool):
    await pool.submit(group("r"))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(idle=True)
    await pool.cancel("r")
    assert await rung(pool, owner.seat)
