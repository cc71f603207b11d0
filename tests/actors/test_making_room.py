"""Two models on a machine with memory for one: their engines take turns, and what runs goes on with its tokens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from engine_seats import WAIT
from tiny_models import make_tiny_model

from actors.liveness import Lifeline
from actors.memory_account import MemoryAccount, account_folder
from actors.ownership import Ownership, SchedulerContext
from actors.placement import engine_label, remove_engine
from actors.replica import check_memory, find_model
from actors.seat import Seat
from load.server import until
from services.errors import SettingsError
from services.loop.iteration_cost import IterationCost
from services.messages import NewSequence, Submission
from services.metrics import Counters
from services.pool.pool import RequestPool
from services.requests import SamplingParams
from services.scheduling import CostModel
from services.settings.models import tag_of
from services.settings.settings import Settings
from services.settings.sources import load
from services.text import TextTables

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.usefixtures("ray_cluster")]

MEMORY = 1500 << 20  # one engine takes a little more than 1 GiB, most of it for its processes
NEW = 60  # tokens of a request
REQUESTS = 3


@dataclass
class Model:
    """A model with its pool and the owner of its seat."""

    settings: Settings
    pool: RequestPool
    ownership: Ownership

    async def submit(self, number: int) -> str:
        sequence = NewSequence(f"r{number}/0", [5 + number] * 8, SamplingParams(NEW, ignore_eos=True))
        await self.pool.submit(Submission(f"r{number}", "g", [sequence]))
        return sequence.id

    async def tokens(self, id: str) -> list[int]:
        """The output tokens of a request, when it has ended."""
        async with asyncio.timeout(WAIT):
            while True:
                (snapshot,) = await self.pool.listen("g", {id: 0})
                if snapshot.end:
                    assert not snapshot.end.error
                    return snapshot.tokens
                await asyncio.sleep(0.1)


@asynccontextmanager
async def served(settings: Settings, pool: RequestPool, lifeline: Lifeline) -> AsyncIterator[Model]:
    """A model whose seat has an owner again and again, as long as the body of the `with` statement runs."""
    folder, info = find_model(settings)
    node = ray.util.get_node_ip_address()
    counted = Counters(), IterationCost(), CostModel()
    context = SchedulerContext(settings, pool, info, TextTables.load(folder), *counted, "me/1", node, lifeline, None)
    await pool.heartbeat("g", 1, {}, ttl=1e9)
    model = Model(settings, pool, Ownership(context, Seat("c/0", 0, ""), None))

    async def own() -> None:
        while True:
            grant = await pool.acquire("c/0", "me/1", settings.constants.lease)
            model.ownership = Ownership(context, Seat("c/0", 0, grant.epoch), None)
            await model.ownership.run()

    owning = asyncio.create_task(own())
    try:
        yield model
    finally:
        owning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await owning
        await asyncio.to_thread(remove_engine, engine_label(0, settings.tag))


async def test_two_busy_models_take_turns_and_lose_nothing(pool: RequestPool, pool_url: str, tmp_path: Path) -> None:
    model = str(make_tiny_model(tmp_path / "model"))
    shared = {"model": model, "memory": MEMORY, "turn_seconds": 3, "kv_blocks": 64, "max_batch_size": 1, "threads": 1}
    other = RequestPool(pool_url, f"{tmp_path.name}-other")
    await other.connect()
    settings = load(**shared), load(**shared, pool="other", tag=tag_of(model, "other"))
    account = MemoryAccount(account_folder(ray.get_runtime_context().get_node_id()), "test", "test", MEMORY, 0.0)
    shares: set[frozenset[str]] = set()

    async def watch() -> None:
        while True:
            with account._locked():
                shares.add(frozenset(account._read(0.0)[0]))
            await asyncio.sleep(0.05)

    watching, lifeline = asyncio.create_task(watch()), Lifeline(ray.util.get_node_ip_address())
    async with served(settings[0], pool, lifeline) as one, served(settings[1], other, lifeline) as two:
        ids = [await each.submit(number) for number in range(REQUESTS) for each in (one, two)]
        await one.tokens(ids[0])
        await until(lambda: len(shares - {frozenset()}) == 2)
        for file in account._folder.glob("engine-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.suffix[1:]), signal.SIGKILL)
        tokens = [[await each.tokens(id) for id in ids[::2]] for each in (one, two)]
    watching.cancel()
    await other.close()
    assert tokens[0] == tokens[1]
    assert {len(output) for output in tokens[0]} == {NEW}
    assert max(map(len, shares)) == 1


def test_a_model_that_does_not_fit_alone_is_refused(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    settings = load(model=str(model), memory="1GiB", device="cpu")
    with pytest.raises(SettingsError, match=r"memory=1\.00 GiB: an engine of .* takes at least 1\.00 GiB alone"):
        check_memory(settings, model)
    check_memory(settings.model_copy(update={"memory": MEMORY}), model)
    check_memory(settings.model_copy(update={"memory": 0}), model)
