"""Seats: one owner at a time, fenced by epochs; what a dead owner ran waits again with its tokens and rank."""

import pytest
from pool_helpers import FIGURES, SEAT, STOP, Owner, all_events, commit, counts, group, let_time_pass, rung, stored

from services.messages import Room
from services.seats import SeatGrant

LEASE = 4.0  # seconds; less than a gateway stays registered


async def _once_expired(pool, act):
    """The result of `act`, which is true once the lease has expired. The pool is in use meanwhile: it is no outage."""
    while not (result := await act()):
        let_time_pass(pool, LEASE / 4)
        await pool.heartbeat("witness", 1, {})
    return result


async def _dead(pool):
    return not any(seat.alive for seat in (await pool.overview()).seats if seat.name == SEAT)


async def _reaped_by(owner):
    """Whether nothing runs after an exchange of another seat."""
    await owner.exchange()
    return (await counts(owner.pool))[1] == 0


async def _granted(pool):
    """The seat with a new owner, if it is free."""
    grant = await pool.acquire(SEAT, "heir", 100)
    return Owner(pool, grant.epoch) if grant.granted else None


async def test_a_seat_has_one_owner(pool):
    one = await pool.acquire(SEAT, "one", 100)
    assert (one.granted, one.owner) == (True, "one")
    held = SeatGrant(False, one.epoch, "one")
    assert await pool.acquire(SEAT, "two", 100) == held
    assert await pool.acquire(SEAT, "two", 100, dead_epoch="0:other") == held
    assert (await pool.acquire("elsewhere", "two", 100)).granted


async def test_the_overview_names_the_owner_of_a_seat(pool):
    owner = await Owner.take(pool, name="10.0.0.1:4000/77")
    assert [seat.owner for seat in (await pool.overview()).seats] == ["10.0.0.1:4000/77"]
    await pool.release(SEAT, owner.epoch)
    assert [seat.owner for seat in (await pool.overview()).seats] == [""]


async def test_a_repeated_acquire_gives_the_same_epoch_until_the_first_exchange(pool):
    one = await pool.acquire(SEAT, "one", 100)
    assert await pool.acquire(SEAT, "one", 100) == one
    two = await pool.acquire(SEAT, "two", 100, dead_epoch=one.epoch)
    assert (two.granted, two.owner) == (True, "two")
    assert await pool.acquire(SEAT, "two", 100, dead_epoch=one.epoch) == two
    owner = Owner(pool, two.epoch)
    await owner.exchange()
    assert await pool.acquire(SEAT, "two", 100) == SeatGrant(False, two.epoch, "two")


async def test_epochs_count_up(pool):
    numbers = []
    for seat in ("a", "b", "a"):
        epoch = (await pool.acquire(seat, "me", 100)).epoch
        await pool.release(seat, epoch)
        numbers.append(int(epoch.split(":")[0]))
    assert numbers == sorted(set(numbers))


async def test_an_epoch_exceeds_a_number_of_another_pool_and_so_do_later_ones(pool):
    """The clock of the other pool's server may be ahead by years."""
    ahead, numbers = 9 * 10**15, []
    for after in (ahead, 0, ahead + 10, 0):
        epoch = (await pool.acquire("a", "me", 100, after=after)).epoch
        await pool.release("a", epoch)
        numbers.append(int(epoch.split(":")[0]))
    assert numbers[0] > ahead
    assert numbers[2] > ahead + 10
    assert numbers == sorted(set(numbers))


@pytest.fixture
async def running(pool):
    """An owner with a short lease that runs `r/0` (two tokens committed) and `r/1`; `s/0` waits."""
    await pool.submit(group("r", n=2))
    await pool.submit(group("s"))
    owner = await Owner.take(pool, lease=LEASE)
    await owner.claim(Room(2, 64, 16))
    await owner.exchange(commit("r/0", 0, 5, 6))
    return owner


async def test_naming_the_dead_epoch_takes_the_seat_at_once(pool, running):
    heir = await Owner.take(pool, name="heir", lease=100, dead=running.epoch)
    assert await counts(pool) == (3, 0, 0)
    reply = await heir.exchange(room=Room(9, 64, 16))
    assert [(c.id, c.output) for c in reply.claims] == [("r/0", [5, 6]), ("r/1", []), ("s/0", [])]
    assert (await pool.overview()).counters == {"orca:reclaimed_requests": 2.0}


async def test_an_owner_whose_lease_expired_writes_nothing(pool, running):
    heir = await Owner.take(pool, name="heir", lease=100, dead=running.epoch)
    await heir.claim()
    assert not (await running.exchange(commit("r/0", 2, 9, end=STOP))).owned
    assert not (await running.repeat(commit("r/0", 2, 9))).owned
    await pool.release(SEAT, running.epoch)
    assert await counts(pool) == (0, 3, 0)
    await heir.exchange(commit("r/0", 2, 7, end=STOP))
    assert (await stored(pool, "r/0")).tokens == [5, 6, 7]


async def test_an_expired_lease_frees_the_seat_and_its_sequences(pool, running):
    assert not (await pool.acquire(SEAT, "heir", 100)).granted
    assert await _once_expired(pool, lambda: _dead(pool))
    heir = await _once_expired(pool, lambda: _granted(pool))
    assert await heir.claim(Room(9, 64, 16)) == ["r/0", "r/1", "s/0"]
    assert not (await running.exchange()).owned


async def test_an_exchange_of_another_seat_reclaims_the_seat(pool, running):
    other = await Owner.take(pool, "other", lease=100)
    assert await _once_expired(pool, lambda: _reaped_by(other))
    assert await other.claim(Room(9, 64, 16)) == ["r/0", "r/1", "s/0"]
    assert not (await running.exchange()).owned


async def test_an_exchange_renews_the_lease(pool, running):
    for _ in range(8):
        let_time_pass(pool, LEASE / 4)
        assert (await running.exchange()).owned
    assert not (await pool.acquire(SEAT, "heir", 100)).granted


async def test_after_an_outage_leases_start_again_once(pool, running):
    let_time_pass(pool, 1.5 * LEASE)
    assert not (await pool.acquire(SEAT, "heir", 100)).granted
    assert (await running.exchange()).owned
    let_time_pass(pool, 1.5 * LEASE)
    await pool.heartbeat("gateway", 1, {})
    assert await _once_expired(pool, lambda: _granted(pool))


async def test_a_repeat_does_not_renew_the_lease(pool, running):
    async def repeated():
        assert (await running.repeat()).owned
        return await _granted(pool)

    assert await _once_expired(pool, repeated)


async def test_a_released_seat_is_free_and_stays_in_the_overview(pool, running):
    await running.exchange(figures=FIGURES)
    await pool.release(SEAT, running.epoch)
    assert await counts(pool) == (3, 0, 0)
    [seat] = (await pool.overview()).seats
    assert (seat.name, seat.alive, seat.running, seat.figures) == (SEAT, False, 0, FIGURES)
    assert (await pool.overview()).counters == {}
    assert not (await running.exchange()).owned
    assert (await pool.acquire(SEAT, "heir", 100)).granted


async def test_a_release_counts_once_and_only_for_the_owner(pool, running):
    await running.exchange(counters={"n": 1.0})
    assert not await pool.release(SEAT, "0:stale", counters={"n": 8.0})
    for _ in range(2):  # the second one is a repeat
        assert await pool.release(SEAT, running.epoch, counters={"n": 2.0, "m": 0.5})
    assert (await pool.overview()).counters == {"n": 3.0, "m": 0.5}


async def test_requeued_sequences_wake_idle_seats(pool, running):
    for seat in ("a", "b"):
        await (await Owner.take(pool, seat)).exchange(idle=True)
    await pool.release(SEAT, running.epoch)
    assert await rung(pool, "a")
    assert await rung(pool, "b")


async def test_a_cancelled_sequence_of_a_reclaimed_seat_ends_once(pool, running):
    await pool.cancel("r")
    other = await Owner.take(pool, "other")
    assert await _once_expired(pool, lambda: _reaped_by(other))
    assert await counts(pool) == (1, 0, 2)
    assert await other.claim() == ["s/0"]
    assert sum(event.end is not None for event in await all_events(pool)) == 2
