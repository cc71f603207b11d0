"""When a spare may use the memory that the other process has left."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection

import pytest
import torch

from actors import engine
from actors.liveness import WeightsMark
from services.engine.startup.shared_memory import SharedMemory

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
