"""The blocks that an engine process leaves to the spare beside it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from engine_seats import SETTINGS, WAIT, iteration, keeping_spare, seat
from tiny_models import make_tiny_model

from actors.engine_client import Attachment, EngineClient
from actors.engine_processes import EngineProcesses
from services.engine.startup import huge_pages
from services.loop.iteration_cost import IterationCost
from services.messages import Iteration
from services.models.pin import pin
from services.settings.settings import Settings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("ray_cluster", "nothing_left"),
    pytest.mark.skipif(not huge_pages.available(), reason="this kernel gives shared memory no huge pages"),
]

PATIENCE = 200.0  # seconds; processes that import torch side by side on two busy cores take tens of them


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    model = str(make_tiny_model(tmp_path / "model"))
    changes = {"null_engine": False, "model": model, "device": "cpu", "kv_blocks": 16}
    return SETTINGS.model_copy(update=changes)


async def attach(engine: EngineProcesses, epoch: str) -> tuple[EngineClient, Attachment]:
    return await asyncio.wait_for(engine.open_client(epoch, IterationCost()), PATIENCE)


@pytest.mark.parametrize("stopped", [False, True])
async def test_the_spare_finds_the_blocks_of_a_process_that_is_dead(settings: Settings, stopped: bool) -> None:
    """One that is only stopped may write when it goes on, so the spare kills it first."""
    engine = seat(settings)
    client, _ = await attach(engine, "1:a")
    await client.start(iteration("1:a"))
    await client.start(Iteration("1:a", 2, {"r/0": 1}, full_blocks={0: b"x"}))
    async with keeping_spare(engine, client, "1:a"):
        os.kill(client.status.pid, signal.SIGSTOP if stopped else signal.SIGKILL)
    if not stopped:
        await asyncio.wait_for(client.dead, WAIT)
    _, attachment = await attach(seat(settings), "2:b")
    assert attachment.cached_blocks == {0: b"x"}
    await asyncio.wait_for(client.dead, WAIT)


async def test_the_spare_goes_on_with_the_weights_in_memory_when_the_files_have_changed(settings: Settings) -> None:
    folder = Path(settings.model)
    settings = settings.model_copy(update={"model": pin(settings.model, settings.cache_dir)})
    engine = seat(settings)
    client, first = await attach(engine, "1:a")
    async with keeping_spare(engine, client, "1:a"):
        (folder / "model.safetensors").write_bytes(b"")
        os.kill(client.status.pid, signal.SIGKILL)
    await asyncio.wait_for(client.dead, WAIT)
    second, attachment = await attach(seat(settings), "2:b")
    assert attachment.figures == first.figures
    assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}
