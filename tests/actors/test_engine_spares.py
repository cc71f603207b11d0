"""The spare beside an engine process with weights: when it takes over, and when it does not count as a spare."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from engine_seats import (
    WAIT,
    attach,
    attach_with_spare,
    iteration,
    keeping_spare,
    named,
    never_busy,
    seat,
    spare_name,
    status_of,
)

from actors import engine_processes
from actors.engine_client import EngineClient
from actors.engine_processes import EngineProcesses
from actors.placement import find_engine, remove_engine
from load.server import until
from services import background
from services.errors import StaleEpoch

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("ray_cluster", "nothing_left"),
]

NEVER = 3600.0


async def test_a_spare_does_not_wait_for_one_that_died_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new process of the dead one is stopped, so that it cannot report that it has no weights."""
    monkeypatch.setattr(engine_processes, "PATIENCE", NEVER)
    first = await attach_with_spare("1:a")
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
    monkeypatch.setattr(engine_processes, "PATIENCE", NEVER)
    first = await attach_with_spare("1:a")
    os.kill(first.status.pid, signal.SIGSTOP)
    attaching = asyncio.create_task(attach(seat(), "2:b"))
    done, _ = await asyncio.wait({attaching}, timeout=1.0)
    assert not done
    os.kill(first.status.pid, signal.SIGCONT)
    assert (await attaching).status.pid == first.status.pid


async def test_the_spare_loads_if_the_process_with_the_weights_stays_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_processes, "PATIENCE", 0.5)
    first = await attach_with_spare("1:a")
    os.kill(first.status.pid, signal.SIGSTOP)
    second = await attach(seat(), "2:b")
    assert second.status.name != first.status.name
    assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}
    os.kill(first.status.pid, signal.SIGKILL)


async def test_the_first_spare_starts_in_a_quiet_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "QUIET", 0.3)
    engines, requests = seat(), ["one"]
    client = await attach(engines, "1:a")

    async def busy() -> bool:
        return bool(requests)

    keeping = asyncio.create_task(engines.keep_spares("1:a", client.names, 1.0, busy))
    await asyncio.sleep(1.0)
    assert find_engine(spare_name(client)) is None
    requests.clear()
    await until(lambda: engines.has_spare)
    keeping.cancel()


async def test_a_stopped_spare_does_not_count_until_it_goes_on() -> None:
    engines = seat()
    client = await attach(engines, "1:a")
    async with keeping_spare(engines, client, "1:a"):
        spare = await stopped_spare(engines, client)
        os.kill(spare, signal.SIGCONT)
        await until(lambda: engines.has_spare)
    assert (await status_of(spare_name(client))).pid == spare


async def stopped_spare(engines: EngineProcesses, client: EngineClient) -> int:
    """Stop the spare; return its process id when its owner has noticed."""
    spare = (await status_of(spare_name(client))).pid
    os.kill(spare, signal.SIGSTOP)
    await until(lambda: not engines.has_spare)
    return spare


async def test_a_spare_that_is_stopped_for_long_is_killed() -> None:
    engines = seat()
    client = await attach(engines, "1:a")
    async with keeping_spare(engines, client, "1:a"):
        spare = await stopped_spare(engines, client)
        await until(lambda: engines.has_spare)
    assert (await status_of(spare_name(client))).pid != spare


async def test_a_spare_that_cannot_give_up_its_weights_is_killed() -> None:
    """Like a rank that waits for a dead one: `drop` waits for a call that never ends."""
    engines = seat()
    first = await attach(engines, "1:a")
    async with keeping_spare(engines, first, "1:a"):
        stuck = (await status_of(spare_name(first))).pid
        await named(spare_name(first)).serve.remote("1:a")
        named(spare_name(first)).__ray_call__.remote(lambda actor: time.sleep(NEVER))
        await until(lambda: not engines.has_spare)
        await until(lambda: engines.has_spare)
    after = await status_of(spare_name(first))
    assert after.pid != stuck
    assert after.epoch is None


async def test_a_scheduler_that_lost_the_seat_kills_no_spare() -> None:
    async def lost() -> None:
        raise StaleEpoch("another process owns the seat")

    engines = seat(check_owner=lost)
    client = await attach_with_spare("1:a")
    spare = (await status_of(spare_name(client))).pid
    keeping = asyncio.create_task(engines.keep_spares("1:a", client.names, 0.5, never_busy))
    await until(lambda: engines.has_spare)
    os.kill(spare, signal.SIGSTOP)
    await asyncio.wait_for(keeping, WAIT)
    os.kill(spare, signal.SIGCONT)
    assert (await status_of(spare_name(client))).pid == spare


async def test_a_spare_is_made_again_when_its_placement_group_was_removed() -> None:
    engines = seat()
    client = await attach(engines, "1:a")
    async with keeping_spare(engines, client, "1:a"):
        await asyncio.to_thread(remove_engine, "0")
        await until(lambda: not engines.has_spare)
        await until(lambda: engines.has_spare)
