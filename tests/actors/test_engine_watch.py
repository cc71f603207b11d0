"""What `orca serve` learns of engine processes that fail while it starts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from engine_seats import SETTINGS, WAIT, attach, named, seat, status_of

from actors.cluster.engine_failures import EngineFailure, EngineWatch
from actors.cluster.environment import mark_of
from actors.engine_record import forget, records_in
from actors.placement import engine_names, ensure_engine
from load.server import until
from services.errors import EngineLost, ModelError
from services.settings.sources import load

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("folder", "ray_cluster", "nothing_left"),
]
NAME = engine_names("0")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the cluster that is started next."""
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*mark_of(folder).split("=", 1))
        yield folder


@pytest.fixture
def watch(folder: Path) -> Iterator[EngineWatch]:
    context = ray.get_runtime_context()
    yield EngineWatch(records_in(folder), Path(context.get_temp_dir(), context.get_session_name(), "logs"))
    forget("engine-")


async def next_failure(watch: EngineWatch) -> EngineFailure:
    found: list[EngineFailure] = []
    await until(lambda: bool(found.extend(watch.look()) or found), WAIT, every=0.1)
    (failure,) = found
    return failure


async def start(prepare: Callable[[Any], None] | None = None) -> int:
    """Start an engine process, let `prepare` change its actor, and return its id."""
    await asyncio.to_thread(ensure_engine, SETTINGS, 0)
    pid = (await status_of(NAME)).pid
    if prepare:
        await named(NAME).__ray_call__.remote(prepare)
    return pid


async def test_an_exception_while_it_warms_up(watch: EngineWatch) -> None:
    def fail_in_warm_up(actor: Any) -> None:
        def fail(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        actor._warm_up = fail

    pid = await start(fail_in_warm_up)
    with pytest.raises(EngineLost, match="No space left on device"):
        await attach(seat(), "1:a")
    failure = await next_failure(watch)
    assert failure == EngineFailure("0", NAME, pid, "OSError: [Errno 28] No space left on device")
    (log,) = watch._logs.glob(f"worker-*-{pid}.err")
    assert "Traceback" in log.read_text()
    await status_of(NAME)  # the next process has started
    assert await asyncio.to_thread(watch.look) == []


async def test_a_crash_while_it_loads(watch: EngineWatch) -> None:
    def crash(actor: Any) -> None:
        actor._load_engine = lambda: signal.raise_signal(signal.SIGILL)

    pid = await start(crash)
    with pytest.raises(EngineLost, match="died"):
        await attach(seat(), "1:a")
    failure = await next_failure(watch)
    assert (failure.pid, failure.reason) == (pid, "its process crashed: SIGILL, Illegal instruction")


async def test_a_death_without_a_word_and_without_an_owner(watch: EngineWatch) -> None:
    pid = await start()
    os.kill(pid, signal.SIGKILL)
    failure = await next_failure(watch)
    assert (failure.pid, failure.refused) == (pid, False)
    assert failure.reason.startswith("its process was killed")


async def test_a_model_that_is_refused_before_it_is_loaded(watch: EngineWatch, tmp_path: Path) -> None:
    await asyncio.to_thread(ensure_engine, load(model=str(tmp_path), device="cpu"), 0)
    failure = await next_failure(watch)
    assert failure.refused
    assert str(tmp_path) in failure.reason


async def test_a_model_that_is_refused_when_it_is_loaded(watch: EngineWatch) -> None:
    def refuse(actor: Any) -> None:
        def fail() -> None:
            raise ModelError("its layers are not served")

        actor._load_engine = fail

    pid = await start(refuse)
    with pytest.raises(ModelError):
        await attach(seat(), "1:a")
    assert await next_failure(watch) == EngineFailure("0", NAME, pid, "its layers are not served", refused=True)
