"""Expiry: an ended group stays readable for a time, and is dropped earlier if its bytes are needed."""

from dataclasses import replace

from pool_helpers import CANCELLED, STOP, Owner, commit, counts, ended_size, group, keys, let_time_pass, size, stored

from services.messages import Logprobs, SubmitReply
from services.pool.limits import Limits

KEEP = 0.1


async def _end(pool, name, **more):
    await pool.submit(group(name, **more))
    await pool.cancel(name)


async def test_an_ended_group_expires_with_all_its_keys(pools):
    pool = await pools(keep_ended=KEEP)
    await _end(pool, "r", n=2, key="k")
    assert await pool.submit(group("other", key="k")) == SubmitReply("r", existed=True)
    let_time_pass(pool, 2 * KEEP)
    assert await pool.submit(group("other", key="k")) == SubmitReply("other")
    assert not (await stored(pool, "r/0")).known
    assert await pool.group("r") is None
    assert await counts(pool) == (1, 0, 0)
    assert (await pool.overview()).bytes == size(group("other", key="k"))


async def test_an_exchange_drops_expired_groups_too(pools):
    pool = await pools(keep_ended=KEEP)
    owner = await Owner.take(pool)
    await _end(pool, "r")
    let_time_pass(pool, 2 * KEEP)
    await owner.exchange()
    assert await counts(pool) == (0, 0, 0)


async def test_the_seat_that_has_a_text_for_drafts_is_told_that_it_has_expired(pools):
    pool = await pools(keep_ended=KEEP)
    await pool.submit(replace(group("r"), remember=True))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 1, end=STOP))
    assert (await owner.exchange()).forgotten == []
    let_time_pass(pool, 2 * KEEP)
    assert (await owner.exchange()).forgotten == ["r/0"]


async def test_a_group_stays_whole_until_its_last_sequence_has_ended(pools):
    pool = await pools(keep_ended=KEEP)
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 1, end=STOP))
    let_time_pass(pool, 2 * KEEP)
    await owner.exchange()
    assert (await stored(pool, "r/0")).tokens == [1]
    await owner.exchange(commit("r/1", 0, 2, end=STOP))
    assert (await stored(pool, "r/1")).tokens == [2]


async def test_the_oldest_ended_groups_are_dropped_for_new_ones(pools):
    one, asked = ended_size(group("a")), group("d", n=2)
    pool = await pools(max_bytes=size(asked) + one)
    for name in ("a", "b", "c"):
        await _end(pool, name)
    assert (await pool.submit(asked)).refused is None
    assert [(await stored(pool, f"{name}/0")).known for name in "abcd"] == [False, False, True, True]
    assert (await pool.overview()).bytes == size(asked) + one


async def test_nothing_is_dropped_for_a_group_that_does_not_fit_anyway(pools):
    living, big = group("living"), group("big", n=3)
    pool = await pools(max_bytes=size(living, big) - 1)
    await pool.submit(living)
    await _end(pool, "ended")
    assert (await pool.submit(big)).refused.bound == "bytes"
    assert (await stored(pool, "ended/0")).known


async def test_an_empty_pool_leaves_no_keys_of_its_sequences(server_pools):
    """However they ended, whichever gateway listened and whichever bell rang."""
    pool = await server_pools(Limits(keep_ended=KEEP, grace=KEEP))
    owner, idle = await Owner.take(pool), await Owner.take(pool, "idle")
    await idle.exchange(idle=True)
    await pool.submit(group("r", n=2, key="k", logprobs=1))
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 1, end=STOP, logprobs=[Logprobs(0.0, [])]), commit("r/1", 0, 2))
    await pool.cancel("r")
    await owner.exchange(commit("r/1", 1, end=STOP))
    for name in ("deleted", "deleted-later", "left", "orphan", "struck"):
        await pool.submit(replace(group(name, gateway=f"g-{name}", key=name), resumable=True))
        await pool.heartbeat(f"g-{name}", 1, {}, ttl=100.0)
    await pool.cancel("deleted")
    await pool.delete("deleted")
    await owner.claim()
    await pool.delete("deleted-later")
    await pool.unlisten("g-left", "left")
    await pool.heartbeat("g-orphan", 2, {}, ttl=KEEP)
    for _ in range(3):
        await pool.release(owner.seat, owner.epoch, ["struck/0"])
        owner = await Owner.take(pool)
        await owner.claim()
    let_time_pass(pool, 2 * KEEP)  # the registration of the orphan's gateway expires
    for cancelled in ((await owner.exchange()).cancelled, ["orphan/0"]):
        await owner.exchange(*(commit(id, 0, end=CANCELLED) for id in cancelled))
        let_time_pass(pool, 2 * KEEP)
    for gateway in ("gateway", "g-deleted", "g-deleted-later", "g-left", "g-struck"):
        await pool.unregister(gateway)
    await owner.exchange()
    assert await counts(pool) == (0, 0, 0)
    assert (await pool.overview()).bytes == 0
    for one in (owner, idle):
        await pool.release(one.seat, one.epoch)
    empty = {"meta", "counters", "seats", f"seat:{owner.seat}", "seat:idle"}
    assert await keys(pool) == empty | {"turn:default"}, "its counters expire by themselves"
    await pool._server.command("DEL", f"{pool._prefix}turn:default")
    let_time_pass(pool, 3601)
    await Owner.take(pool, "another")
    assert await keys(pool) == {"meta", "counters", "seats", "leases", "seat:another"}


async def test_seats_without_an_owner_are_forgotten(pool):
    for seat in ("a", "b"):
        owner = await Owner.take(pool, seat)
        await pool.release(seat, owner.epoch)
    await Owner.take(pool, "c")
    let_time_pass(pool, 3601)
    await pool.acquire("d", "me", 100)
    assert {seat.name for seat in (await pool.overview()).seats} == {"c", "d"}
