"""Which process gets a seat, and when: with a real pool, and with holders that really die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest
from lifeline_process import HERE, LifelineProcess

from actors.seat import Seat, SeatHolders, hold, renew, take_seat
from load.server import until
from services.errors import NotWanted, StaleEpoch
from services.pool.pool import RequestPool
from services.seats import SeatGrant

NEVER = 600.0  # seconds; a lease that does not expire during a test
SHORT = 1.5


def spare(pool: RequestPool, seats: int, lease: float, owner: str = f"{HERE}:1/1") -> asyncio.Task[Seat]:
    return asyncio.create_task(take_seat(pool, "c", lambda: seats, owner, lease))


async def still_waits(*spares: asyncio.Task[Seat]) -> None:
    done, _ = await asyncio.wait(spares, timeout=0.5)
    assert not done


async def test_the_first_free_seat_is_taken(pool: RequestPool, holder: LifelineProcess) -> None:
    held = await pool.acquire("c/0", holder.owner, NEVER)
    seat = await asyncio.wait_for(spare(pool, 2, NEVER), 30)
    assert (seat.name, seat.index) == ("c/1", 1)
    assert seat.epoch != held.epoch
    assert seat.noticed <= seat.acquired


async def test_a_spare_takes_the_seat_of_a_dead_process_long_before_its_lease_ends(
    pool: RequestPool, holder: LifelineProcess
) -> None:
    held = await pool.acquire("c/0", holder.owner, NEVER)
    waiting = spare(pool, 1, NEVER)
    await still_waits(waiting)
    holder.kill()
    seat = await asyncio.wait_for(waiting, 30)
    assert seat.epoch != held.epoch
    with pytest.raises(StaleEpoch):
        await hold(pool, Seat("c/0", 0, held.epoch), NEVER)


async def test_a_wait_returns_at_once_if_a_holder_is_dead_already(holder: LifelineProcess) -> None:
    """The holder dies while the pool is asked for its seat."""
    holders = SeatHolders(node=HERE)
    holders.watch("c/0", SeatGrant(False, "1:a", holder.owner))
    holder.kill()
    await until(lambda: holders.dead_epoch("c/0") == "1:a")
    await asyncio.wait_for(holders.wait(NEVER), 30)


async def test_a_spare_that_comes_after_the_death_takes_the_seat_too(
    pool: RequestPool, holder: LifelineProcess
) -> None:
    await pool.acquire("c/0", holder.owner, NEVER)
    holder.kill()
    await asyncio.wait_for(spare(pool, 1, NEVER), 30)


async def test_a_stopped_holder_keeps_its_seat_to_the_end_of_its_lease(
    pool: RequestPool, holder: LifelineProcess
) -> None:
    lasting, ending = "c/0", "c/1"
    await pool.acquire(lasting, holder.owner, NEVER)
    held = await pool.acquire(ending, holder.owner, SHORT)
    holder.process.send_signal(signal.SIGSTOP)
    seat = await asyncio.wait_for(spare(pool, 2, SHORT), 30)
    assert seat.name == ending
    assert seat.epoch != held.epoch


async def test_two_deaths_give_two_spares_a_seat_each(
    pool: RequestPool, make_holder: Callable[[], LifelineProcess]
) -> None:
    holders = [make_holder(), make_holder()]
    for index, holder in enumerate(holders):
        await pool.acquire(f"c/{index}", holder.owner, NEVER)
    spares = {spare(pool, 2, NEVER, make_holder().owner) for _ in range(2)}
    await still_waits(*spares)
    holders[1].kill()
    (first,), (other,) = await asyncio.wait(spares, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert first.result().name == "c/1"
    await still_waits(other)
    holders[0].kill()
    assert (await asyncio.wait_for(other, 30)).name == "c/0"


async def test_a_released_seat_is_taken_at_the_next_try(pool: RequestPool, holder: LifelineProcess) -> None:
    held = await pool.acquire("c/0", holder.owner, SHORT)
    holding = asyncio.create_task(hold(pool, Seat("c/0", 0, held.epoch), SHORT))
    waiting = spare(pool, 1, SHORT)
    done, _ = await asyncio.wait({holding, waiting}, timeout=3 * SHORT)
    assert not done
    holding.cancel()
    await pool.release("c/0", held.epoch)
    await asyncio.wait_for(waiting, 30)


async def test_a_seat_is_not_ready_while_its_engine_is_not_attached(pool: RequestPool, holder: LifelineProcess) -> None:
    held = await pool.acquire("c/0", holder.owner, NEVER)
    before = pool.last_call
    await renew(pool, Seat("c/0", 0, held.epoch), lambda: {"engine_pid": 7.0})
    assert pool.last_call > before  # a scheduler is healthy as long as it calls the pool
    (seat,) = (await pool.overview()).seats
    assert (seat.gauges["ready"], seat.gauges["engine_pid"]) == (0, 7)


async def test_a_spare_waits_for_no_more_seats_than_are_wanted(pool: RequestPool, holder: LifelineProcess) -> None:
    await pool.acquire("c/0", holder.owner, NEVER)
    waiting = spare(pool, 1, SHORT)
    await still_waits(waiting)
    await pool.scale("c", 2)
    seat = await asyncio.wait_for(waiting, 30)
    assert (seat.name, seat.surplus) == ("c/1", False)


async def test_a_surplus_seat_of_a_dead_process_is_taken_to_be_removed(
    pool: RequestPool, make_holder: Callable[[], LifelineProcess]
) -> None:
    first, second = make_holder(), make_holder()
    await pool.acquire("c/0", first.owner, NEVER)
    await pool.acquire("c/1", second.owner, NEVER)
    waiting = spare(pool, 2, SHORT)
    await still_waits(waiting)
    await pool.scale("c", 1)
    second.kill()
    seat = await asyncio.wait_for(waiting, 30)
    assert (seat.name, seat.surplus) == ("c/1", True)
    await pool.release(seat.name, seat.epoch, removed=True)
    await still_waits(spare(pool, 2, SHORT))  # nothing is left to be done


async def test_a_spare_forgets_the_holders_of_seats_that_are_gone(holder: LifelineProcess) -> None:
    """Otherwise the death of a process that held one earlier would end each of its waits at once."""
    holders = SeatHolders(node=HERE)
    holders.watch("c/1", SeatGrant(False, "1:a", holder.owner))
    holder.kill()
    await until(lambda: holders.dead_epoch("c/1") == "1:a")
    holders.keep(["c/0"])
    assert holders.dead_epoch("c/1") is None
    holders.close()


async def test_a_seat_that_becomes_surplus_while_its_engine_loads_is_given_up(
    pool: RequestPool, holder: LifelineProcess
) -> None:
    await pool.engines("c", 2)
    held = await pool.acquire("c/1", holder.owner, SHORT)
    holding = asyncio.create_task(hold(pool, Seat("c/1", 1, held.epoch), SHORT))
    await pool.scale("c", 1)
    with pytest.raises(NotWanted):
        await asyncio.wait_for(holding, 30)
    again = await pool.acquire("c/1", holder.owner, SHORT, dead_epoch=held.epoch)
    removing = asyncio.create_task(hold(pool, Seat("c/1", 1, again.epoch, surplus=True), SHORT))
    await still_waits(removing)
    removing.cancel()
