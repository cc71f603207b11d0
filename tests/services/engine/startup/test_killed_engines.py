"""Engines that are killed with SIGKILL leave full blocks to the next process, and nothing that is not as named."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import pytest
import torch
from driver import Driver, Job
from fake_driver import install
from marked import full
from owners import Owners
from rank_processes import FORKS, PATIENCE, RankProcesses
from test_engine import seeded_jobs

from services.engine.batch.block_names import common
from services.engine.engine import Engine
from services.engine.parallel.layout import Layout
from services.engine.settings import EngineSettings
from services.engine.startup import huge_pages
from services.engine.startup.shared_memory import SharedMemory
from services.engine.warm_up import WarmUp
from services.messages import Claim, Iteration, NewRequest
from services.scheduling.block_pool import BlockHashes

pytestmark = pytest.mark.skipif(not huge_pages.available(), reason="shared memory has no huge pages here")

BLOCK = 4
SETTINGS = EngineSettings("cpu", "float32", block_size=BLOCK, kv_blocks=60, threads=1)


def claims() -> list[Claim]:
    return [Claim(job.id, float(i), job.prompt, [], job.sampling) for i, job in enumerate(seeded_jobs())]


def holding(path: str, device: bool = False) -> SharedMemory:
    """The memory at a path; `device`: with its tensors in that of a fake device."""
    memory = SharedMemory("build", install()[1] if device else {})
    if path:
        memory.hold(path)
    return memory


def serve(pipe: Connection, folder: Path, path: str, settings: EngineSettings, device: bool) -> None:
    """Compute the requests again and again, by new owners, each with the blocks of those before."""
    memory = holding(path, device)
    engine = Engine.load(folder, settings, memory=memory)
    pipe.send(memory.path)
    for number in itertools.count(1):
        owners = Owners(engine, lambda: engine.block_names, claims())
        owners.own(f"{number}:a", 4)
        if number == 1:
            pipe.send("under way")
        owners.own(f"{number}:b", 20)


def killed(folder: Path, memory: SharedMemory, settings: EngineSettings, device: bool) -> SharedMemory:
    """Let a process use what is in this memory, and kill it at any time. Returns the memory that it has left."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=serve, args=(theirs, folder, memory.path, settings, device), daemon=True)
    process.start()
    assert ours.poll(PATIENCE)
    left = holding(ours.recv(), device)
    assert ours.poll(PATIENCE)
    ours.recv()
    time.sleep(random.uniform(0, 0.03))
    assert left.end_maker(PATIENCE)
    process.join()
    return left


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fake is left in this process afterwards."""
    install(monkeypatch.setattr)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("kept", "device"), [("int8_per_token_head", False), ("auto", True), *full([("auto", False)])])
def test_blocks_of_killed_processes_contain_what_their_names_stand_for(
    kept: Literal["auto", "int8_per_token_head"], device: bool, tiny_model: Callable[[str], Path]
) -> None:
    folder, memory = tiny_model("llama"), holding("", device)
    settings = replace(SETTINGS, kv_cache_dtype=kept)
    for _ in range(2):
        memory = killed(folder, memory, settings, device)
    engine = Engine.load(folder, settings, memory=memory)
    alone = Engine.load(folder, replace(settings, kv_blocks=100))
    blocks = {name: block for block, name in engine.block_names.items()}
    jobs = [Driver(alone).run([job])[0] for job in seeded_jobs()]
    compared = sum(compare(job, alone, engine, blocks) for job in jobs)
    assert compared == len(blocks) > 0
    owners = Owners(engine, lambda: engine.block_names, claims())
    owners.own("9:z", 20)
    assert [owners.outputs[job.id] for job in jobs] == [job.output for job in jobs]


def test_a_spare_that_was_prepared_before_continues_with_what_was_written_since(
    tiny_model: Callable[[str], Path],
) -> None:
    """Its preparation changes nothing for the process that serves."""
    folder, first = tiny_model("llama"), SharedMemory("build")
    expected = [Driver(Engine.load(folder, SETTINGS)).run([job])[0].output for job in seeded_jobs()]
    assert Engine.adopt(folder, SETTINGS, 0, first) is None
    serving = Engine.load(folder, SETTINGS, memory=first)
    owners = Owners(serving, lambda: serving.block_names, claims())
    owners.own("1:a", 3)
    spare = Engine.adopt(folder, SETTINGS, 0, holding(first.path))
    assert spare
    assert WarmUp(spare).run().bits == WarmUp(serving).run().bits
    owners.own("2:b", 3)
    spare.recall()
    assert spare.block_names == serving.block_names != {}
    again = Owners(spare, lambda: spare.block_names, claims())
    again.outputs, again.open = owners.outputs, owners.open
    again.own("3:c", 20)
    assert [again.outputs[claim.id] for claim in claims()] == expected
    assert max(again.recomputed[0].values()) <= BLOCK


def compare(job: Job, alone: Engine, engine: Engine, blocks: dict[bytes, int]) -> int:
    """How many of the request's blocks `engine` has under their names. They must be bitwise those of `alone`, which
    computes all its tokens at once."""
    tokens = job.tokens
    count = len(tokens) // BLOCK
    new = NewRequest(job.id, tokens, len(job.prompt), job.sampling)
    alone.reset(job.id)
    alone.run(Iteration(job.id, 1, {job.id: len(tokens)}, [new], {job.id: list(range(count + 1))}))
    names = BlockHashes("default", BLOCK).first(count, tokens, [])
    found = [(own, blocks[name]) for own, name in enumerate(names) if name in blocks]
    for mine, others in zip(stores(alone), stores(engine), strict=True):
        for own, other in found:
            assert torch.equal(mine[own], others[other])
    return len(found)


def stores(engine: Engine) -> list[torch.Tensor]:
    return [*engine._cache.keys, *engine._cache.values]


def load_rank(paths: list[str], folder: Path, settings: EngineSettings, layout: Layout) -> Engine:
    memory = holding(paths[layout.rank])
    engine = Engine.load(folder, settings, layout.rank, memory=memory)
    engine.memory_path = lambda: memory.path  # type: ignore[attr-defined]
    return engine


class Ranks(RankProcesses):
    """Two ranks that use what is at these paths."""

    def __init__(self, folder: Path, paths: list[str]) -> None:
        super().__init__(folder, replace(SETTINGS, tp=2), partial(load_rank, paths))
        self.held = [holding(path) for path in self.all("memory_path")]

    def names(self) -> dict[int, bytes]:
        return common(self.all("__getattribute__", "block_names"))


@pytest.mark.chaos
def test_ranks_that_were_killed_leave_the_blocks_that_all_of_them_have(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("llama")
    expected = [Driver(Engine.load(folder, SETTINGS)).run([job])[0].output for job in seeded_jobs()]
    with Ranks(folder, ["", ""]) as first:
        owners = Owners(first, first.names, claims())
        owners.own("1:a", 4)
    with Ranks(folder, [memory.path for memory in first.held]) as second:
        assert second.names()
        again = Owners(second, second.names, claims())
        again.outputs, again.open = owners.outputs, owners.open
        again.own("2:b", 20)
    assert [again.outputs[claim.id] for claim in claims()] == expected
    assert max(again.recomputed[0].values()) <= BLOCK
