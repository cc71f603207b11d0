"""Which process gets a seat, and when: with a real pool, and with holders that really die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from lifeline_process import HERE, LifelineProcess

from actors import engine_processes
from actors import seat as seats
from actors.ownership import Ownership
from actors.scaling import schedulers_needed, want_engines
from actors.scheduler import engines_in
from actors.seat import ModelSeats, Seat, SeatHolders, first_death, hold, renew, take_seat
from actors.sleeping import Sleeper
from load.server import until
from services.errors import (
    EngineLost,
    LaterEpoch,
    ModelError,
    NoRoom,
    NotWanted,
    PoolUnavailable,
    SchedulerFault,
    StaleEpoch,
)
from services.messages import EngineFigures, NewSequence, Submission
from services.metrics import Counters
from services.overview import SleepLevel
from services.pool.pool import RequestPool
from services.requests import SamplingParams
from services.seats import ClusterSeats, SeatGrant
from services.settings.constants import Constants
from services.settings.settings import Settings
from services.sleep import SleepRule

NEVER = 600.0  # seconds; a lease that does not expire during a test
SHORT = 1.5


def spare(pool: RequestPool, seats: int, lease: float, owner: str = f"{HERE}:1/1") -> asyncio.Task[Seat]:
    return asyncio.create_task(take_seat([ModelSeats("", [pool], "c", lambda: seats)], owner, lease))


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
    await asyncio.wait_for(first_death([holders], NEVER), 30)


async def test_a_spare_that_comes_after_the_death_takes_the_seat_too(
    pool: RequestPool, holder: LifelineProcess
) -> None:
    await pool.acquire("c/0", holder.owner, NEVER)
    holder.kill()
    await asyncio.wait_for(spare(pool, 1, NEVER), 30)


async def test_a_spare_kills_a_holder_that_is_stopped_and_takes_its_seat(
    pool: RequestPool, holder: LifelineProcess
) -> None:
    held = await pool.acquire("c/0", holder.owner, NEVER)
    holder.process.send_signal(signal.SIGSTOP)
    counters = Counters()
    taking = take_seat([ModelSeats("", [pool], "c", lambda: 1)], f"{HERE}:1/1", NEVER, counters)
    seat = await asyncio.wait_for(taking, 30)
    assert seat.epoch != held.epoch
    assert await asyncio.to_thread(holder.process.wait) == -signal.SIGKILL
    assert counters.take() == {"orca:scheduler_stuck": 1.0}


async def test_a_stopped_holder_on_another_node_keeps_its_seat_to_the_end_of_its_lease(
    pool: RequestPool, holder: LifelineProcess
) -> None:
    """Its process id says nothing here."""
    lasting, ending = "c/0", "c/1"
    await pool.acquire(lasting, holder.owner, NEVER)
    held = await pool.acquire(ending, holder.owner, SHORT)
    holder.process.send_signal(signal.SIGSTOP)
    seat = await asyncio.wait_for(spare(pool, 2, SHORT, "127.0.0.2:1/1"), 30)
    assert seat.name == ending
    assert seat.epoch != held.epoch
    assert holder.process.poll() is None


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


async def test_seats_are_dealt_to_the_shards_in_turn(pool: RequestPool, holder: LifelineProcess) -> None:
    """A shard that is away does not keep a spare from the seats of another one."""
    away = RequestPool("redis://127.0.0.1:1")
    await pool.acquire("c/1", holder.owner, NEVER)
    seat = await asyncio.wait_for(take_seat([ModelSeats("", [away, pool], "c", lambda: 4)], f"{HERE}:1/1", NEVER), 30)
    assert seat.name == "c/3"
    await away.close()


async def test_a_spare_asks_a_pool_that_was_away_long_before_a_lease_ends(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, failures = pool.acquire, [PoolUnavailable("away")]

    async def fail_once(*args: Any) -> SeatGrant:
        if failures:
            raise failures.pop()
        return await acquire(*args)

    monkeypatch.setattr(pool, "acquire", fail_once)
    assert (await asyncio.wait_for(spare(pool, 1, NEVER), 30)).name == "c/0"


async def test_a_spare_does_not_ask_a_pool_again_and_again_that_is_away(
    pool: RequestPool, holder: LifelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's server and the holder of its seat die together."""
    monkeypatch.setattr(seats, "POOL_PAUSE", NEVER)
    await pool.acquire("c/0", holder.owner, NEVER)
    acquire, calls = pool.acquire, []

    async def fail_after_the_first(seat: str, owner: str, lease: float, dead_epoch: str | None = None) -> SeatGrant:
        calls.append(dead_epoch)
        if dead_epoch is not None:
            raise PoolUnavailable("away")
        return await acquire(seat, owner, lease)

    monkeypatch.setattr(pool, "acquire", fail_after_the_first)
    waiting = spare(pool, 1, NEVER)
    await until(lambda: len(calls) == 1)
    holder.kill()
    await until(lambda: len(calls) == 2)
    await still_waits(waiting)
    assert len(calls) == 2


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


async def test_watches_of_holders_end_when_they_are_not_needed(make_holder: Callable[[], LifelineProcess]) -> None:
    holders, (one, other) = SeatHolders(node=HERE), (make_holder().owner, make_holder().owner)
    watches: list[asyncio.Task[None]] = []
    for epoch, owner in (("1:a", one), ("1:a", one), ("2:b", other)):
        holders.watch("c/0", SeatGrant(False, epoch, owner))
        watches += holders.deaths
    first, again, second = watches
    assert first is again is not second
    holders.keep([])
    assert holders.deaths == []
    holders.watch("c/0", SeatGrant(False, "3:c", one))
    (third,) = holders.deaths
    holders.close()
    await asyncio.wait([first, second, third], timeout=30)
    assert first.cancelled()
    assert second.cancelled()
    assert third.cancelled()


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


async def test_the_engine_of_a_seat_that_another_pool_has_too_is_left_to_that_one(
    pool: RequestPool, make_holder: Callable[[], LifelineProcess]
) -> None:
    """Seat 2 was in the second pool until the list of shards changed."""
    other = RequestPool(pool._server.url, f"{pool.name}.1")
    draining, lasting = make_holder(), make_holder()
    for one, seat, owner in ((pool, "c/0", lasting), (other, "c/1", lasting), (pool, "c/2", draining)):
        await one.acquire(seat, owner.owner, NEVER)
    await other.release("c/2", (await other.acquire("c/2", lasting.owner, NEVER)).epoch)
    await want_engines([pool, other], "c", 2)

    def taken() -> asyncio.Task[Seat]:
        return asyncio.create_task(take_seat([ModelSeats("", [pool, other], "c", lambda: 2)], f"{HERE}:1/1", SHORT))

    left = await asyncio.wait_for(taken(), 30)
    assert (left.name, left.shard, left.surplus, left.shared) == ("c/2", 1, True, True)
    await other.release("c/2", left.epoch, removed=True)
    draining.kill()
    last = await asyncio.wait_for(taken(), 30)
    assert (last.name, last.shard, last.surplus, last.shared) == ("c/2", 0, True, False)
    await other.close()


async def test_an_engine_is_left_alone_while_another_pool_is_away(pool: RequestPool, holder: LifelineProcess) -> None:
    away = RequestPool("redis://127.0.0.1:1")
    await pool.acquire("c/0", holder.owner, NEVER)
    await pool.release("c/2", (await pool.acquire("c/2", holder.owner, NEVER)).epoch)
    await pool.scale("c", 2)
    seat = await asyncio.wait_for(take_seat([ModelSeats("", [pool, away], "c", lambda: 2)], f"{HERE}:1/1", SHORT), 30)
    assert (seat.name, seat.surplus, seat.shared) == ("c/2", True, True)
    await away.close()


def context_of(pool: RequestPool, counters: Counters) -> Any:
    settings, lifeline = Settings(null_engine=True), SimpleNamespace(watchers=0)
    return SimpleNamespace(
        settings=settings, pool=pool, node=HERE, lifeline=lifeline, counters=counters, owner=f"{HERE}:1/1"
    )


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("error", "struck", "killed"),
    [(EngineLost("it died"), ["a/0"], ["kill"]), (SchedulerFault(["b/0"]), ["b/0"], []), (StaleEpoch("over"), [], [])],
)
async def test_an_owner_kills_the_engine_that_it_lost_and_gives_the_seat_back_last(
    pool: RequestPool,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    struck: list[str],
    killed: list[str],
    lost: bool,
) -> None:
    grant = await pool.acquire("c/0", f"{HERE}:1/1", NEVER)
    done: list[object] = []
    release = pool.release

    async def noted(seat: str, epoch: str, struck: list[str], removed: bool, counted: dict[str, float]) -> bool:
        done.append((struck, removed))
        return await release(seat, epoch, struck, removed, counted)

    async def kill() -> None:
        done.append("kill")

    async def serve(self: Ownership, attachment: object) -> None:
        loop = SimpleNamespace(in_flight=["a/0"], level=0.0, doubt=lambda: None)
        self._loop, self._client = loop, client  # type: ignore[assignment]
        raise error

    async def attach(self: Ownership) -> None: ...

    client = SimpleNamespace(
        gone=False, kill=kill, close=lambda: done.append("close"), first_result=0.0, status=SimpleNamespace(pid=1)
    )
    monkeypatch.setattr(pool, "release", noted)
    monkeypatch.setattr(Ownership, "_attach", attach)
    monkeypatch.setattr(Ownership, "_serve", serve)
    epoch = "0:stale" if lost else grant.epoch  # a scheduler that stood still does not kill the next owner's engine
    await Ownership(context_of(pool, Counters()), Seat("c/0", 0, epoch), None).run()
    assert done == [*(killed if not lost else []), "close", (struck, False)]


async def test_a_seat_whose_epoch_the_engine_refuses_is_taken_again(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = Seat("c/0", 0, (await pool.acquire("c/0", f"{HERE}:1/1", NEVER)).epoch, call=7)
    number = int(seat.epoch.partition(":")[0]) + 10**9
    answers = [LaterEpoch("it has heard of a later owner", number)]

    async def open_client(self: Ownership) -> str:
        if answers:
            raise answers.pop()
        return seat.epoch

    monkeypatch.setattr(Ownership, "_open_client", open_client)
    attached: Any = await Ownership(context_of(pool, Counters()), seat, None)._attach()
    assert attached == seat.epoch
    assert int(seat.epoch.partition(":")[0]) > number
    await renew(pool, seat)  # it owns the seat


async def test_a_seat_says_why_its_engine_cannot_load_the_model_until_it_can(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = Seat("c/0", 0, (await pool.acquire("c/0", f"{HERE}:1/1", NEVER)).epoch)
    answers = [ModelError("its files\nare gone")]

    async def attach(self: Ownership) -> str:
        if answers:
            raise answers[0]
        return "attached"

    monkeypatch.setattr(Ownership, "_attach", attach)
    context = context_of(pool, Counters())
    constants = Constants(lease=SHORT / 5)
    context.settings = context.settings.model_copy(update={"constants": constants})
    loading = asyncio.create_task(Ownership(context, seat, None)._load())
    said: list[str] = []

    async def says(text: str) -> None:
        while (await pool.overview()).failure != text:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        said.append(text)

    await asyncio.wait_for(says("its files are gone"), 30)
    answers.clear()
    assert await asyncio.wait_for(loading, 30) == "attached"
    await renew(pool, seat)
    await asyncio.wait_for(says(""), 30)


async def test_an_engine_that_was_off_and_found_no_room_is_off_again(pool: RequestPool) -> None:
    """Its processes were started for the try, and end when nothing waits any more."""
    await pool.heartbeat("g", 1, {}, ttl=1e9)
    seat = Seat("c/0", 0, (await pool.acquire("c/0", f"{HERE}:1/1", NEVER)).epoch)
    done: list[str] = []

    async def remove() -> None:
        done.append("removed")

    async def attach() -> Any:
        if done.count("removed") < 2:
            done.append("tried")
            await pool.cancel("r")
            raise NoRoom("other engines have the memory")
        return "attached"

    async def holding(work: Any) -> None:
        await work

    async def submit(request: str, after: int) -> None:
        while done.count("removed") < after:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        await pool.submit(Submission(request, "g", [NewSequence(f"{request}/0", [5], SamplingParams(4))]))

    engine: Any = SimpleNamespace(keep_alive=asyncio.Event().wait, remove=remove)
    figures = EngineFigures("m", 4096, 100, 16, 100, "n")
    sleeper = Sleeper(pool, seat, engine, SleepRule(0.01, SleepLevel.OFF), 0.0, SHORT / 5, holding, dict)
    sleeping = asyncio.create_task(sleeper.sleep(None, figures, attach))
    async with asyncio.timeout(30):
        await submit("r", after=1)
        await submit("s", after=2)
        assert await sleeping == "attached"
    assert done == ["removed", "tried", "removed"]


async def test_the_loop_knows_of_each_call_of_its_owner(pool: RequestPool) -> None:
    seat = Seat("c/0", 0, (await pool.acquire("c/0", f"{HERE}:1/1", NEVER)).epoch)
    ownership, doubted = Ownership(context_of(pool, Counters()), seat, None), asyncio.Event()
    ownership._loop = SimpleNamespace(level=0.0, doubt=doubted.set)  # type: ignore[assignment]
    await ownership._check_owner()
    assert doubted.is_set()


@pytest.mark.parametrize("call", ["exchange", "release"])
async def test_an_owner_asks_a_pool_that_was_away_long_before_its_lease_ends(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The pool's server and the engine die together."""
    seat = Seat("c/0", 0, (await pool.acquire("c/0", f"{HERE}:1/1", NEVER)).epoch)
    ask, failures = getattr(pool, call), [PoolUnavailable("away")]

    async def fail_once(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await ask(*args)

    monkeypatch.setattr(pool, call, fail_once)
    context = context_of(pool, Counters())
    context.settings = context.settings.model_copy(update={"constants": Constants(lease=NEVER)})
    ownership = Ownership(context, seat, None)
    await asyncio.wait_for(ownership._release([]) if call == "release" else ownership._check_owner(), 30)
    assert not failures


async def test_work_on_a_seat_that_is_lost_is_cancelled(pool: RequestPool) -> None:
    seat = Seat("c/0", 0, "0:stale")
    grant = await pool.acquire("c/0", f"{HERE}:1/1", NEVER)
    ownership, before = Ownership(context_of(pool, Counters()), seat, None), asyncio.all_tasks()
    with pytest.raises(StaleEpoch):
        await asyncio.wait_for(ownership._while_holding(asyncio.Event().wait()), 30)
    seat.epoch = grant.epoch
    assert await ownership._while_holding(asyncio.sleep(0, "done")) == "done"
    assert asyncio.all_tasks() == before, "the lease is renewed no longer"


@pytest.mark.parametrize(("shared", "fails"), [(False, False), (True, False), (False, True)])
async def test_the_owner_of_a_surplus_seat_removes_its_own_engine_only(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch, shared: bool, fails: bool
) -> None:
    removed: list[str] = []

    def remove(engine: str) -> None:
        removed.append(engine)
        if fails:
            raise EngineLost("it cannot be removed")

    monkeypatch.setattr(engine_processes, "remove_engine", remove)
    await pool.acquire("c/0", f"{HERE}:1/1", NEVER)
    await pool.scale("c", 1)
    grant = await pool.acquire("c/1", f"{HERE}:1/1", NEVER)
    context = context_of(pool, Counters())
    await Ownership(context, Seat("c/1", 1, grant.epoch, surplus=True, shared=shared), None).run()
    assert removed == ([] if shared else ["1"])
    assert (await pool.engines("c", 1)).indices == ([0, 1] if fails else [0])


@pytest.mark.parametrize("lost", [False, True])
async def test_what_an_owner_counted_stays_with_the_pool_when_it_gives_the_seat_back(
    pool: RequestPool, lost: bool
) -> None:
    """Another process may take the seat. What was counted in a seat that is lost is kept for the next one."""
    grant = await pool.acquire("c/1", f"{HERE}:1/1", NEVER)
    await pool.scale("c", 1)
    counters = Counters()
    counters.inc("orca:engine_losses", engine="1")
    context = context_of(pool, counters)
    epoch = "0:stale" if lost else grant.epoch
    await Ownership(context, Seat("c/1", 1, epoch, surplus=True, shared=True), None).run()
    counted = {"orca:engine_losses|1": 1.0}
    assert ((await pool.overview()).counters, counters.take()) == (({}, counted) if lost else (counted, {}))


def test_a_seat_that_two_pools_have_counts_once_for_the_number_of_schedulers() -> None:
    assert schedulers_needed([ClusterSeats(3, [0, 2]), ClusterSeats(3, [1, 2])]) == 3
    assert schedulers_needed([ClusterSeats(2, [0, 2]), ClusterSeats(2, [1, 3])]) == 4


def test_a_configuration_without_an_engine_for_each_shard_is_refused() -> None:
    assert engines_in({"engines": 2}, [2]) == [2]
    assert engines_in({"engines": [2, 3]}, [1, 2]) == [2, 3]
    with pytest.raises(ValueError, match="the engines of 1 models, 2 are served"):
        engines_in({"engines": 2}, [1, 1])
    with pytest.raises(ValueError, match="engines is 1, at least 2 are needed, one for each shard"):
        engines_in({"engines": 1}, [2])
    with pytest.raises(ValueError, match="engines is 0, at least 1"):
        engines_in({"engines": 0}, [1])
