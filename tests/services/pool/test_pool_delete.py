"""Delete: an ended group is dropped at once, a running one is hidden and dropped at its end."""

from dataclasses import replace

from pool_helpers import CANCELLED, ROOM, STOP, Owner, all_events, commit, counts, group, stored

from services.messages import SubmitReply, TokenEvent


async def test_an_ended_group_is_forgotten_at_once(pool):
    await pool.submit(group("r", n=2, key="k"))
    await pool.cancel("r")
    assert await pool.delete("r")
    assert await pool.group("r") is None
    assert not (await stored(pool, "r/0")).known
    assert await counts(pool) == (0, 0, 0)
    assert (await pool.overview()).bytes == 0
    assert not await pool.delete("r")
    assert await pool.submit(group("s", key="k")) == SubmitReply("s")


async def test_a_waiting_group_is_cancelled_and_forgotten(pool):
    await pool.submit(group("r", n=2))
    assert await pool.delete("r")
    assert await counts(pool) == (0, 0, 0)
    assert [event.end for event in await all_events(pool)] == [CANCELLED, CANCELLED]
    assert (await pool.overview()).bytes == 0


async def test_a_running_group_is_hidden_and_forgotten_when_it_has_ended(pool):
    await pool.submit(group("r", n=3, key="k"))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 4, end=STOP))
    assert await pool.delete("r")
    assert await pool.group("r") is None
    assert not await pool.delete("r")
    assert await pool.submit(group("s", key="k")) == SubmitReply("s")
    assert (await owner.exchange(commit("r/1", 0, 5))).cancelled == ["r/1", "r/2"]
    assert (await stored(pool, "r/1")).known
    await owner.exchange(commit("r/1", 1, end=CANCELLED), commit("r/2", 0, end=CANCELLED), commit("r/2", 0, 9))
    assert await counts(pool) == (1, 0, 0)
    assert not (await stored(pool, "r/0")).known
    assert (await all_events(pool))[-1] == TokenEvent("r/2", 0, None, end=CANCELLED)


async def test_a_deleted_group_of_a_dead_owner_is_dropped_too(pool):
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim()
    await pool.delete("r")
    heir = await Owner.take(pool, name="heir", dead=owner.epoch)
    assert await heir.claim(ROOM) == []
    assert await counts(pool) == (0, 0, 0)


async def test_the_seat_that_has_a_text_for_drafts_is_told_that_it_is_deleted(pool):
    for name, remember in (("r", True), ("private", False)):
        await pool.submit(replace(group(name, n=2), remember=remember))
    owner, other = await Owner.take(pool), await Owner.take(pool, "c/1")
    ids = await owner.claim()
    await owner.exchange(*(commit(id, 0, 4, end=STOP) for id in ids))
    assert await pool.delete("r")
    assert await pool.delete("private")
    assert (await owner.exchange()).forgotten == ["r/0", "r/1"]
    assert (await owner.repeat()).forgotten == ["r/0", "r/1"]
    assert (await owner.exchange()).forgotten == []
    assert (await other.exchange()).forgotten == []


async def test_a_running_group_that_is_deleted_is_forgotten_with_its_end(pool):
    await pool.submit(replace(group("r"), remember=True))
    owner = await Owner.take(pool)
    await owner.claim()
    await pool.delete("r")
    assert (await owner.exchange(commit("r/0", 0, 4))).forgotten == []
    assert (await owner.exchange(commit("r/0", 1, end=CANCELLED))).forgotten == ["r/0"]


async def test_an_heir_of_a_seat_is_told_nothing_of_texts_that_it_never_had(pool):
    await pool.submit(replace(group("r"), remember=True))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 4, end=STOP))
    await pool.delete("r")
    heir = await Owner.take(pool, name="heir", dead=owner.epoch)
    assert (await heir.exchange()).forgotten == []


async def test_an_unknown_group_cannot_be_deleted(pool):
    assert not await pool.delete("never")
