"""When a spare may use the memory that the other process has left."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from unittest.mock import Mock

import pytest
import torch

from actors import engine
from actors.channel import Door
from actors.liveness import WeightsMark
from services.engine.null import NullEngine
from services.engine.parallel.layout import Layout
from services.engine.settings import EngineSettings
from services.engine.startup import shared_memory
from services.engine.startup.shared_memory import SharedMemory
from services.messages import EngineFigures
from tests.services.engine.fake_driver import install

FORKS = multiprocessing.get_context("forkserver")
PATIENCE = 200.0  # seconds; the processes import torch
CHILD = 10.0  # seconds that a child lives


def make(pipe: Connection, mark: str, child: bool) -> None:
    """Leave a memory with the mark of a process that has weights, also to a child that has not called `exec`."""
    memory = SharedMemory("build", {})
    weights = torch.ones(3)
    kept = memory.fill("same", lambda allocate: weights, lambda *_: weights)  # type: ignore[arg-type, return-value]
    marked = WeightsMark(mark)
    marked.set()
    if child and os.fork() == 0:
        time.sleep(CHILD)
        os._exit(0)
    pipe.send(memory.path)
    time.sleep(PATIENCE)
    assert kept
    assert marked


@pytest.mark.parametrize("child", [False, True])
def test_the_other_process_and_all_that_has_its_files_must_be_gone(
    child: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it has started on a GPU may still write."""
    monkeypatch.setattr(engine, "END_TIMEOUT", 1.0)
    mark = f"test-left-{os.getpid()}-{child}"
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=make, args=(theirs, mark, child), daemon=True)
    process.start()
    memory = SharedMemory("build", {})
    assert not engine._left_by(memory, mark), "nothing is left"
    assert ours.poll(PATIENCE)
    assert memory.hold(ours.recv())
    assert engine._left_by(memory, mark) == (not child)
    process.join()
    assert memory.restore("same")


class Busy(NullEngine):
    """With an iteration on its device that was launched for an owner that has gone."""

    busy, fails = True, False

    def reset(self, epoch: str) -> None:
        if self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.busy = False
        super().reset(epoch)


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_owner_has_left_running_is_noted_when_it_ends(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that has done it counts as sound, however long it then rests; one that has failed never does."""
    devices = install(monkeypatch.setattr)[1]
    actor = object.__new__(engine.EngineActor)  # without Ray, which only gives it a name
    actor._memory, spare = (SharedMemory("build", devices) for _ in range(2))
    kept = actor._memory.fill("same", *[lambda *given: given[-1]((9,), torch.uint8, torch.device("cpu"))] * 2)
    actor._engine = Busy(EngineFigures("null", 100, 100, 16, 200, "null"))
    actor._server, actor._layout, actor._warm_up = Mock(), Layout(), None
    actor._server.open.return_value = Door("", "", b"")
    actor._settings, actor._expected, actor._epoch, actor._node = EngineSettings(), 0, "1:a", ""
    assert spare.hold(actor._memory.path)
    with actor._noting():
        pass
    if fails:
        actor._engine.fails = devices["cpu"].faulty = True  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="illegal"):
            actor._serve("2:b", "", False)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(shared_memory, "HUNG", 0.0)
            assert not spare.sound, "an iteration may run"
            actor._serve("2:b", "", False)
            assert spare.sound
    assert spare.sound == (not fails)
    assert kept
