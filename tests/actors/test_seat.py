"""Which process gets a seat, and when: with a real pool, and with holders that really die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest
from actors_lives import HERE, Life

from actors.seat import Seat, SeatHolders, hold, renew, take_seat
from load.server import until
from services.errors import StaleEpoch
from services.messages import SeatGrant
from services.pool.pool import RequestPool

NEVER = 600.0  # seconds; a lease that does not expire during a test
SHORT = 1.5


def spare(pool: RequestPool, seats: int, lease: float, owner: str = f"{HERE}:1/1") -> asyncio.Task[Seat]:
    return asyncio.create_task(take_seat(pool, "c", seats, owner, lease))


async def still_waits(*spares: asyncio.Task[Seat]) -> None:
    done, _ = await asyncio.wait(spares, timeout=0.5)
    assert not done


async def test_the_first_free_seat_is_taken(pool: RequestPool, life: Life) -> None:
    held = await pool.acquire("c/0", life.owner, NEVER)
    seat = await asyncio.wait_for(spare(pool, 2, NEVER), 30)
    assert (seat.name, seat.index) == ("c/1", 1)
    assert seat.epoch != held.epoch
    assert seat.noticed <= seat.acquired


async def test_a_spare_takes_the_seat_of_a_dead_process_long_before_its_lease_ends(
    pool: RequestPool, life: Life
) -> None:
    held = await pool.acquire("c/0", life.owner, NEVER)
    waiting = spare(pool, 1, NEVER)
    await still_waits(waiting)
    life.kill()
    seat = await asyncio.wait_for(waiting, 30)
    assert seat.epoch != held.epoch
    with pytest.raises(StaleEpoch):
        await hold(pool, Seat("c/0", 0, held.epoch), NEVER)


async def test_a_wait_returns_at_once_if_a_holder_is_dead_already(life: Life) -> None:
    """The holder dies while the pool is asked for its seat."""
    holders = SeatHolders(node=HERE)
    holders.watch("c/0", SeatGrant(False, "1:a", life.owner))
    life.kill()
    await until(lambda: holders.dead_epoch("c/0") == "1:a")
    await asyncio.wait_for(holders.wait(NEVER), 30)


async def test_a_spare_that_comes_after_the_death_takes_the_seat_too(pool: RequestPool, life: Life) -> None:
    await pool.acquire("c/0", life.owner, NEVER)
    life.kill()
    await asyncio.wait_for(spare(pool, 1, NEVER), 30)


async def test_a_stopped_holder_keeps_its_seat_to_the_end_of_its_lease(pool: RequestPool, life: Life) -> None:
    lasting, ending = "c/0", "c/1"
    await pool.acquire(lasting, life.owner, NEVER)
    held = await pool.acquire(ending, life.owner, SHORT)
    life.process.send_signal(signal.SIGSTOP)
    seat = await asyncio.wait_for(spare(pool, 2, SHORT), 30)
    assert seat.name == ending
    assert seat.epoch != held.epoch


async def test_two_deaths_give_two_spares_a_seat_each(pool: RequestPool, make_life: Callable[[], Life]) -> None:
    holders = [make_life(), make_life()]
    for index, life in enumerate(holders):
        await pool.acquire(f"c/{index}", life.owner, NEVER)
    spares = {spare(pool, 2, NEVER, make_life().owner) for _ in range(2)}
    await still_waits(*spares)
    holders[1].kill()
    (first,), (other,) = await asyncio.wait(spares, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert first.result().name == "c/1"
    await still_waits(other)
    holders[0].kill()
    assert (await asyncio.wait_for(other, 30)).name == "c/0"


async def test_a_released_seat_is_taken_at_the_next_try(pool: RequestPool, life: Life) -> None:
    held = await pool.acquire("c/0", life.owner, SHORT)
    holding = asyncio.create_task(hold(pool, Seat("c/0", 0, held.epoch), SHORT))
    waiting = spare(pool, 1, SHORT)
    done, _ = await asyncio.wait({holding, waiting}, timeout=3 * SHORT)
    assert not done
    holding.cancel()
    await pool.release("c/0", held.epoch)
    await asyncio.wait_for(waiting, 30)


async def test_a_seat_is_not_ready_while_its_engine_is_not_attached(pool: RequestPool, life: Life) -> None:
    held = await pool.acquire("c/0", life.owner, NEVER)
    before = pool.last_call
    await renew(pool, Seat("c/0", 0, held.epoch), lambda: {"engine_pid": 7.0})
    assert pool.last_call > before  # a scheduler is healthy as long as it calls the pool
    (seat,) = (await pool.overview()).seats
    assert (seat.gauges["ready"], seat.gauges["engine_pid"]) == (0, 7)
