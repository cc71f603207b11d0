"""An engine of a cluster whose model files change while the server runs."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from engine_seats import WAIT, attach, seat, status_of
from tiny_models import make_tiny_model

from actors.placement import engine_names, ensure_engine
from services.errors import OtherWeights
from services.models.pin import pin
from services.settings.sources import load

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("ray_cluster", "nothing_left"),
]


async def test_it_does_not_load_other_weights(tmp_path: Path) -> None:
    """Neither process loads them, and both go on; the spare holds no memory here. The original weights are loaded when
    their files are restored."""
    folder = make_tiny_model(tmp_path / "model")
    settings = load(model=pin(str(folder), tmp_path / "cache"), device="cpu", dtype="float32", kv_blocks=64)
    engine = seat(settings)
    link = await attach(engine, "1:a")
    await asyncio.to_thread(ensure_engine, settings, 0, 0, 1)
    await status_of(engine_names("0")[1])
    weights = folder / "model.safetensors"
    old = weights.read_bytes()
    weights.write_bytes((make_tiny_model(tmp_path / "other", seed=1) / weights.name).read_bytes())
    assert weights.stat().st_size == len(old)

    os.kill(link.status.pid, signal.SIGKILL)
    await asyncio.wait_for(link.dead, WAIT)
    link.close()
    with pytest.raises(OtherWeights, match="this server was started with"):
        await attach(engine, "2:b")
    pids = [(await status_of(name)).pid for name in engine_names("0")]
    with pytest.raises(OtherWeights, match="this server was started with"):
        await attach(engine, "3:c")
    assert [(await status_of(name)).pid for name in engine_names("0")] == pids
    weights.write_bytes(old)
    back = await attach(engine, "4:d")
    assert back.status.pid in pids
    back.close()
