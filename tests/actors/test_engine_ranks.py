"""The processes of a seat's engine, on a real Ray cluster with null engines."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import ray
from ray.actor import ActorHandle

from actors import engine_link, engine_pair, engine_ranks
from actors.engine import EngineStatus
from actors.engine_link import EngineLink
from actors.engine_ranks import EngineRanks
from actors.placement import NAMESPACE, engine_names, ensure_engine, find_engine, remove_engine
from services.config import Settings, load
from services.errors import EngineLost, StaleEpoch
from services.iteration_cost import IterationCost
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.asyncio(loop_scope="module")]

SETTINGS = load(null_engine=True)
WAIT = 60.0
NEVER = 3600.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=150 << 20,
        log_to_driver=False,
        namespace=NAMESPACE,
    )
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    yield
    await asyncio.to_thread(remove_engine, 0)


def seat(settings: Settings = SETTINGS) -> EngineRanks:
    return EngineRanks(settings, 0, ray.util.get_node_ip_address())


async def attach(engine: EngineRanks, epoch: str) -> EngineLink:
    link, figures, _ = await asyncio.wait_for(engine.attach(epoch, allowed, IterationCost()), WAIT)
    assert figures.num_blocks > 0
    return link


async def allowed() -> None:
    """The seat is still ours."""


async def with_spare(engine: EngineRanks, link: EngineLink, epoch: str) -> asyncio.Task[None]:
    """Let the engine keep a spare, from when it has one."""
    keeping = asyncio.create_task(engine.keep_spares(epoch, link.names, 1.0))
    async with asyncio.timeout(WAIT):
        while not engine.has_spare:  # noqa: ASYNC110  another process: nothing here says when
            await asyncio.sleep(0.05)
    return keeping


def iteration(epoch: str) -> Iteration:
    return Iteration(
        epoch, 1, {"r/0": 2}, new=[NewRequest("r/0", [1, 2], 2, SamplingParams(4))], new_blocks={"r/0": [0]}
    )


async def test_weights_are_loaded_once_and_obey_the_last_owner() -> None:
    first = await attach(seat(), "1:a")
    assert (await first.start(iteration("1:a"))).tokens.keys() == {"r/0"}
    second = await attach(seat(), "2:b")
    assert second.status.pid == first.status.pid
    assert second.status.epoch == "1:a"
    with pytest.raises(StaleEpoch):
        await first.start(iteration("1:a"))
    assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}


async def test_the_spare_takes_over_and_the_dead_one_becomes_the_spare() -> None:
    engines = seat()
    first = await attach(engines, "1:a")
    keeping = await with_spare(engines, first, "1:a")
    os.kill(first.status.pid, signal.SIGKILL)
    await asyncio.wait_for(first.dead, WAIT)
    with pytest.raises(EngineLost):
        await first.start(iteration("1:a"))
    keeping.cancel()
    second = await attach(engines, "2:b")
    assert second.status.name != first.status.name
    assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}
    engines = seat()
    keeping = await with_spare(engines, second, "2:b")
    os.kill(second.status.pid, signal.SIGKILL)
    third = await attach(seat(), "3:c")
    assert third.status.name == first.status.name
    assert third.status.pid != first.status.pid
    keeping.cancel()


async def test_an_engine_that_does_not_answer_is_killed() -> None:
    link = await attach(seat(), "1:a")
    os.kill(link.status.pid, signal.SIGSTOP)
    stuck = link.start(iteration("1:a"))
    done, _ = await asyncio.wait({stuck}, timeout=1)
    assert not done
    await link.kill()
    assert link.dead.done()
    with pytest.raises(EngineLost):
        await stuck
    again = await attach(seat(), "2:b")
    assert again.status.pid != link.status.pid


async def test_a_spare_does_not_wait_for_one_that_died_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What died is back without weights, and stands still, so that it cannot say so itself."""
    monkeypatch.setattr(engine_pair, "PATIENCE", NEVER)
    engines = seat()
    first = await attach(engines, "1:a")
    keeping = await with_spare(engines, first, "1:a")
    keeping.cancel()
    os.kill(first.status.pid, signal.SIGKILL)
    await asyncio.wait_for(first.dead, WAIT)
    back = await status_of(first.status.name)
    os.kill(back.pid, signal.SIGSTOP)
    try:
        second = await attach(seat(), "2:b")
        assert second.status.name != first.status.name
        assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}
    finally:
        os.kill(back.pid, signal.SIGKILL)


async def test_a_spare_waits_for_one_that_lives_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pair, "PATIENCE", NEVER)
    engines = seat()
    first = await attach(engines, "1:a")
    keeping = await with_spare(engines, first, "1:a")
    keeping.cancel()
    os.kill(first.status.pid, signal.SIGSTOP)
    attaching = asyncio.create_task(attach(seat(), "2:b"))
    done, _ = await asyncio.wait({attaching}, timeout=1.0)
    assert not done
    os.kill(first.status.pid, signal.SIGCONT)
    assert (await attaching).status.pid == first.status.pid


async def test_the_spare_loads_where_the_weights_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pair, "PATIENCE", 0.5)
    engines = seat()
    first = await attach(engines, "1:a")
    keeping = await with_spare(engines, first, "1:a")
    keeping.cancel()
    os.kill(first.status.pid, signal.SIGSTOP)
    second = await attach(seat(), "2:b")
    assert second.status.name != first.status.name
    assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}
    os.kill(first.status.pid, signal.SIGKILL)


async def slow_engines() -> list[EngineStatus]:
    """Both processes, without weights; each waits 20 seconds for a word from an owner, and loads for 30."""

    def load_slowly(actor: Any) -> None:
        import actors.engine

        load = actor._loaded

        def slowly() -> Any:
            time.sleep(30.0)
            return load()

        actors.engine.ORPHANED_AFTER = 20
        actor._loaded = slowly

    statuses = []
    for which, name in enumerate(engine_names(0)):
        await asyncio.to_thread(ensure_engine, SETTINGS, 0, 0, which)
        statuses.append(await status_of(name))
        await named(name).__ray_call__.remote(load_slowly)
    return statuses


async def test_neither_an_engine_that_loads_for_long_nor_its_spare_is_an_orphan() -> None:
    before = await slow_engines()
    link = await attach(seat(), "1:a")
    assert (await link.start(iteration("1:a"))).tokens.keys() == {"r/0"}
    assert [(await status_of(status.name)).pid for status in before] == [status.pid for status in before]


async def loading(names: list[str]) -> EngineStatus:
    """The process that loads, as soon as one of these does."""
    async with asyncio.timeout(WAIT):
        while True:
            for name in names:
                if (status := await status_of(name)).loading:
                    return status


async def test_the_next_owner_waits_for_the_process_that_loads() -> None:
    """Not for the other, which would load beside it."""
    names = [status.name for status in await slow_engines()]
    attaching = asyncio.create_task(attach(seat(), "1:a"))
    loads = await loading(names)
    attaching.cancel()
    link = await attach(seat(), "2:b")
    assert link.status.pid == loads.pid
    assert [(await status_of(name)).epoch for name in names if name != loads.name] == [None]


async def test_an_engine_that_stands_still_while_it_loads_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_link, "SILENCE", 2.0)
    names = [status.name for status in await slow_engines()]
    attaching = asyncio.create_task(attach(seat(), "1:a"))
    loads = await loading(names)
    os.kill(loads.pid, signal.SIGSTOP)
    with pytest.raises(EngineLost, match="said nothing for 2 s"):
        await attaching
    assert (await status_of(loads.name)).pid != loads.pid


async def test_an_engine_is_killed_from_another_node() -> None:
    link = await attach(seat(), "1:a")
    actor = named(link.status.name)
    afar = EngineLink([(link.status, actor)], 0, "192.0.2.1")
    await afar.kill()
    await asyncio.wait_for(link.dead, WAIT)
    assert (await status_of(link.status.name)).pid != link.status.pid
    afar.close()


async def test_a_spare_that_stands_still_is_none() -> None:
    engines = seat()
    link = await attach(engines, "1:a")
    keeping = await with_spare(engines, link, "1:a")
    (other,) = set(engine_names(0)) - {link.status.name}
    spare = (await status_of(other)).pid
    os.kill(spare, signal.SIGSTOP)
    async with asyncio.timeout(WAIT):
        while engines.has_spare:  # noqa: ASYNC110  another process: nothing here says when
            await asyncio.sleep(0.05)
        os.kill(spare, signal.SIGCONT)
        while not engines.has_spare:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    keeping.cancel()


async def test_a_spare_is_made_anew_when_its_place_was_removed() -> None:
    engines = seat()
    link = await attach(engines, "1:a")
    keeping = await with_spare(engines, link, "1:a")
    await asyncio.to_thread(remove_engine, 0)
    async with asyncio.timeout(WAIT):
        while engines.has_spare:  # noqa: ASYNC110  another process: nothing here says when
            await asyncio.sleep(0.01)
        while not engines.has_spare:
            assert not keeping.done()
            await asyncio.sleep(0.05)
    keeping.cancel()


async def test_an_engine_with_weights_that_never_gets_ready_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers `status`, and what it runs never ends."""

    def hang(actor: Any) -> None:
        actor._warm_up = lambda epoch: time.sleep(3600)

    monkeypatch.setattr(engine_ranks, "REUSE_TIMEOUT", 2.0)
    first = await attach(seat(), "1:a")
    actor = find_engine(first.status.name)
    assert actor is not None
    await actor.__ray_call__.remote(hang)
    with pytest.raises(EngineLost, match="not ready within 2 s"):
        await attach(seat(), "2:b")
    await asyncio.wait_for(first.dead, WAIT)
    third = await attach(seat(), "3:c")
    assert (await third.start(iteration("3:c"))).tokens.keys() == {"r/0"}


async def test_of_two_with_weights_only_a_later_owners_is_kept() -> None:
    engines = seat()
    first = await attach(engines, "1:a")
    keeping = await with_spare(engines, first, "1:a")
    keeping.cancel()
    other = next(name for name in engine_names(0) if name != first.status.name)
    spare = find_engine(other)
    assert spare is not None
    await spare.attach.remote("2:b")
    await spare.drop.remote("1:a")  # from an owner that was stopped and wakes up late
    assert await served(other) == "2:b"
    third = await attach(engines, "3:c")  # either will do
    other = next(name for name in engine_names(0) if name != third.status.name)
    engines = seat()
    keeping = await with_spare(engines, third, "3:c")
    assert await served(other) is None
    assert await served(third.status.name) == "3:c"
    keeping.cancel()


async def served(name: str) -> str | None:
    """The epoch that the engine actor of that name serves; None without weights."""
    return (await status_of(name)).epoch


async def status_of(name: str) -> EngineStatus:
    """As soon as the engine actor of that name can say it."""
    status: EngineStatus = await asyncio.wait_for(named(name).status.remote(), WAIT)
    return status


def named(name: str) -> ActorHandle[Any]:
    actor = find_engine(name)
    assert actor is not None
    return actor


async def test_engines_of_another_build_are_replaced() -> None:
    old = await attach(seat(), "1:a")
    new = await attach(seat(load(null_engine=True, block_size=32)), "2:b")
    assert new.status.build != old.status.build
    await asyncio.wait_for(old.dead, WAIT)
    assert (await new.start(iteration("2:b"))).tokens.keys() == {"r/0"}
