"""One fault after the other on one server, under a constant load of resuming streams.

After each fault, every open stream and several new ones must complete with the tokens of an undisturbed run; at the
end the whole history must be valid. Faults that take the whole cluster down are in `tests/cli/test_serve_life.py`
and in `python -m load.chaos`.

The tests run in file order: each waits until the processes that its fault killed are replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from tiny_models import make_tiny_model

from load.chaos.aof import read_transactions
from load.chaos.checker import check
from load.chaos.faults import FAULTS
from load.chaos.history import Recorder, read
from load.chaos.site import (
    ENGINE,
    GATEWAY,
    SCHEDULER,
    NoTarget,
    Site,
    keep_history,
    loaded_engine,
    owning_schedulers,
)
from load.chaos.streams import Outcome, Streams
from load.chaos.workload import poison, requests
from load.server import ROOT, OrcaServer, until
from load.trace import HttpRequest
from services.client.streaming import open_session

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

LENGTH = 60  # tokens of a typical answer
DEADLY = 300
STREAMS = 6  # at a time
PAUSE = 0.2  # seconds between two of them, in which the processes that start have the processors
MORE = 8  # requests that must start and end after a fault
PATIENCE = 120.0  # seconds
LEASE = 3.0
LONG = pytest.param("haproxy", marks=pytest.mark.chaos)  # clients see the same as after a death of its manager
FLAGS = (
    "--dtype",
    "float32",
    "--durability",
    "strict",
    "--gateways",
    "2",
    "--drain-timeout",
    "1",
)


class Chaos:
    """A server under load."""

    def __init__(
        self, site: Site, streams: Streams, recorder: Recorder, folder: Path, kinds: list[HttpRequest]
    ) -> None:
        self.site, self.streams, self.folder = site, streams, folder
        self._recorder = recorder
        self._over = asyncio.Event()
        self._load = asyncio.create_task(streams.keep(kinds, STREAMS, self._over, PAUSE))

    async def at_work(self) -> tuple[int, list[int]]:
        """The engine with the weights and the schedulers with a seat, as soon as they exist."""
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(NoTarget):
                if owners := owning_schedulers(self.site.server):
                    return loaded_engine(self.site.server), owners
            assert time.monotonic() < end, "no engine or no scheduler is at work"
            await asyncio.sleep(0.1)

    async def inject(self, name: str) -> None:
        """Inject a fault as soon as there is what it hits, and wait until its consequences are over."""
        await self._until(lambda: self.streams.open > 0)
        end = time.monotonic() + PATIENCE
        while True:
            open_ = [o for o in self.streams.outcomes if not o.end]
            try:
                await FAULTS[name].inject(self.site)
                break
            except NoTarget:
                assert time.monotonic() < end, f"no target for {name}"
                await asyncio.sleep(0.1)
        await self.complete(open_)

    async def complete(self, open_: list[Outcome]) -> None:
        """Wait until these streams and several new ones have ended, and check them."""
        count = len(self.streams.outcomes)
        await self._until(lambda: all(o.end for o in open_) and self._ended_after(count) >= MORE)
        self.check([*open_, *self.streams.outcomes[count:]])

    async def scale(self, engines: int) -> None:
        """Let the server have this number of engines, and wait until it has, as an operator does."""
        environment = os.environ | {"ORCA_DATA_DIR": str(self.site.server.data_dir), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "cli", "engines", str(engines)]
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0
        assert said.decode().splitlines()[-1] == f"{engines} of {engines} engines are ready"

    def _ended_after(self, count: int) -> int:
        return sum(o.end > 0 for o in self.streams.outcomes[count:])

    async def _until(self, condition) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert not self._load.done(), f"the load ended: {self._load}"
            assert time.monotonic() < end, "streams do not end"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._over.set()
        await self._load
        self._recorder.close()

    @staticmethod
    def check(outcomes: list[Outcome]) -> None:
        told = [o for o in outcomes if o.end and o.request.name != "poison"]
        assert [(o.request.name, o.error, o.wrong) for o in told if o.error or o.wrong] == []

    def pids(self, title: str) -> set[int]:
        return set(self.site.server.pids(title))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    folder = tmp_path_factory.mktemp("chaos")
    data, model = folder / "data", folder / "model"
    data.mkdir()
    make_tiny_model(model)
    kinds = requests(LENGTH, DEADLY)

    async def send_poison() -> None:
        outcome = await streams.run(poison(DEADLY))
        assert "the engine died, or the scheduler failed, 3 times while it ran this request" in outcome.error

    with contextlib.ExitStack() as stack:
        server = OrcaServer(data, "--model", str(model), "--deadly-token", str(DEADLY), *FLAGS, lease=LEASE)
        stack.push(server.__exit__)
        await asyncio.to_thread(server.__enter__)
        keep_history(data)
        recorder = stack.enter_context(Recorder(folder / "clients.jsonl", time.time))
        async with open_session(server.url) as session:
            streams = Streams(session, recorder, PATIENCE)
            await streams.learn(kinds)
            site = Site(server, lambda: None, send_poison, past_lease=LEASE, outage=LEASE + 1)
            chaos = Chaos(site, streams, recorder, folder, kinds)
            yield chaos
            await chaos.stop()


async def test_a_scheduler_dies_and_the_engine_keeps_its_weights(chaos: Chaos) -> None:
    engine, owners = await chaos.at_work()
    await chaos.inject("scheduler")
    engine_now, owners_now = await chaos.at_work()
    assert engine_now == engine
    assert owners_now != owners


async def test_an_engine_dies_and_the_scheduler_goes_on_with_the_spare(chaos: Chaos) -> None:
    engine, owners = await chaos.at_work()
    await chaos.inject("engine")
    engine_now, owners_now = await chaos.at_work()
    assert engine_now != engine
    assert owners_now == owners


@pytest.mark.parametrize("name", ["gateway", "controller", "pool", LONG])
async def test_it_dies_and_is_replaced(chaos: Chaos, name: str) -> None:
    await chaos.inject(name)


@pytest.mark.parametrize("name", ["spare scheduler", "spare engine"])
async def test_a_spare_dies_and_nothing_else_changes(chaos: Chaos, name: str) -> None:
    engine, owners = await chaos.at_work()
    await chaos.inject(name)
    assert await chaos.at_work() == (engine, owners)


async def test_a_scheduler_that_was_stopped_past_its_lease_writes_nothing(chaos: Chaos) -> None:
    _, owners = await chaos.at_work()
    await chaos.inject("scheduler stopped")
    assert (await chaos.at_work())[1] != owners


async def test_an_engine_is_added_and_removed(chaos: Chaos) -> None:
    engine, _ = await chaos.at_work()
    await chaos.scale(2)
    await until(lambda: iterations(chaos.site.server, engine="1") > 0)
    open_ = [o for o in chaos.streams.outcomes if not o.end]
    await chaos.scale(1)
    await chaos.complete(open_)
    assert (await chaos.at_work())[0] == engine
    await until(lambda: len(chaos.pids(ENGINE)) == 2)  # the engine and its spare
    await until(lambda: len(chaos.pids(SCHEDULER)) == 2)


def iterations(server: OrcaServer, engine: str) -> float:
    """The iterations of one engine so far."""
    page = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    return sum(s.value for s in samples if s.name == "orca:iterations_total" and s.labels["engine"] == engine)


async def test_while_the_pool_is_away_all_processes_wait(chaos: Chaos) -> None:
    before = [chaos.pids(title) for title in (ENGINE, SCHEDULER, GATEWAY)]
    _, owners = await chaos.at_work()
    await chaos.inject("pool stopped")
    after = [chaos.pids(title) for title in (ENGINE, SCHEDULER, GATEWAY)]
    assert all(lived <= live for lived, live in zip(before, after, strict=True))
    assert (await chaos.at_work())[1] == owners


async def test_an_engine_and_its_scheduler_die_together(chaos: Chaos) -> None:
    engine, owners = await chaos.at_work()
    await chaos.inject("engine and scheduler")
    engine_now, owners_now = await chaos.at_work()
    assert engine_now != engine
    assert owners_now != owners


async def test_the_manager_of_the_proxies_dies_and_is_replaced(chaos: Chaos) -> None:
    await chaos.inject("proxy manager")


async def test_a_stuck_engine_is_given_up(chaos: Chaos) -> None:
    engine, _ = await chaos.at_work()
    await chaos.inject("engine stuck")
    assert (await chaos.at_work())[0] != engine


@pytest.mark.chaos  # `tests/cli/test_serve_life.py` does it with null engines, whose spares are ready in a second
async def test_a_request_that_kills_engines_fails_alone(chaos: Chaos) -> None:
    await chaos.inject("poison")


async def test_the_whole_history_is_valid(chaos: Chaos) -> None:
    await chaos.stop()
    assert chaos.site.server.stop() == 0
    verdict = check(read(chaos.folder / "clients.jsonl"), read_transactions(chaos.folder / "data"))
    assert verdict.violations == []
    assert len(verdict.clients.requests) == len(chaos.streams.outcomes)
