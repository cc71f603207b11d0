"""Engine processes while they load the weights."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest
from engine_seats import SETTINGS, WAIT, attach, iteration, named, seat, status_of

from actors import engine_client
from actors.engine import EngineStatus
from actors.placement import engine_names, ensure_engine
from services.errors import EngineLost

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("ray_cluster", "nothing_left"),
]


async def slow_engines() -> list[EngineStatus]:
    """Both processes, without weights. Each ends itself after 20 seconds without an owner, and loads for 30 seconds."""

    def load_slowly(actor: Any) -> None:
        import actors.engine

        load = actor._load_engine

        def slowly() -> Any:
            time.sleep(30.0)
            return load()

        actors.engine.ORPHANED_AFTER = 20
        actor._load_engine = slowly

    statuses = []
    for which, name in enumerate(engine_names("0")):
        await asyncio.to_thread(ensure_engine, SETTINGS, 0, 0, which)
        statuses.append(await status_of(name))
        await named(name).__ray_call__.remote(load_slowly)
    return statuses


async def test_neither_an_engine_that_loads_for_long_nor_its_spare_is_an_orphan() -> None:
    before = await slow_engines()
    client = await attach(seat(), "1:a")
    assert (await client.start(iteration("1:a"))).tokens.keys() == {"r/0"}
    assert [(await status_of(status.name)).pid for status in before] == [status.pid for status in before]


async def loading(names: list[str]) -> EngineStatus:
    """The first of these processes that loads."""
    async with asyncio.timeout(WAIT):
        while True:
            for name in names:
                if (status := await status_of(name)).loading:
                    return status


async def test_the_next_owner_waits_for_the_process_that_loads() -> None:
    """It does not use the other process, which would load at the same time."""
    names = [status.name for status in await slow_engines()]
    attaching = asyncio.create_task(attach(seat(), "1:a"))
    loads = await loading(names)
    attaching.cancel()
    client = await attach(seat(), "2:b")
    assert client.status.pid == loads.pid
    assert [(await status_of(name)).epoch for name in names if name != loads.name] == [None]


async def test_an_engine_that_is_stuck_while_it_loads_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "SILENCE", 2.0)
    names = [status.name for status in await slow_engines()]
    attaching = asyncio.create_task(attach(seat(), "1:a"))
    loads = await loading(names)
    os.kill(loads.pid, signal.SIGSTOP)
    with pytest.raises(EngineLost, match="did not answer for 2 s"):
        await attaching
    assert (await status_of(loads.name)).pid != loads.pid
