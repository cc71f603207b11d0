"""An engine of several ranks generates the tokens of one process, also when a rank dies or is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from stock_model import oracle
from tiny_models import make_tiny_model

from load.options import Options
from load.over_http import run_over_http
from load.server import OrcaServer, until
from load.trace import Request

# one rank of an added model is killed in test_several_models.py
pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(300)]

LENGTH = 200  # tokens
PATIENCE = 120.0  # seconds
ROUNDS = 4
ENGINE = "ray::EngineActor"
FLAGS = ("--dtype", "float32", "--gateways", "1", "--drain-timeout", "1", "--max-batch-size", "6")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    rng = random.Random(0)
    return [Request([rng.randrange(2, 300) for _ in range(rng.randint(1, 40))], LENGTH) for _ in range(6)]


@pytest.fixture(scope="module")
def many(requests: list[Request]) -> list[Request]:
    """So many that a signal comes long before the last token."""
    return requests * ROUNDS


@pytest.fixture(scope="module")
def expected(model: Path, requests: list[Request]) -> list[list[int]]:
    stock = oracle(Options(model=str(model), device="cpu"))
    return [stock(request) for request in requests]


@pytest.fixture(scope="module", params=[("2", "1"), pytest.param(("2", "2"), marks=pytest.mark.chaos)], ids="-".join)
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OrcaServer]:
    tp, pp = request.param
    data = tmp_path_factory.mktemp("data")
    with OrcaServer(data, "--model", str(model), "--tp", tp, "--pp", pp, *FLAGS) as server:
        yield server
        assert server.end() == 0


@pytest.mark.chaos
async def test_a_rank_stands_still_and_the_scheduler_dies(
    server: OrcaServer, many: list[Request], expected: list[list[int]]
) -> None:
    """The next owner does not wait for ranks that wait for the stopped one. All that had weights are killed."""
    server.until_spares()
    before, stopped = set(server.pids(ENGINE)), another_rank(server, server.engine())
    made = server.metrics()["vllm:generation_tokens_total"]
    under_way = asyncio.create_task(run_over_http(server.url, many))
    await until_tokens(server, made + LENGTH)
    assert not under_way.done()
    os.kill(stopped, signal.SIGSTOP)
    os.kill(server.scheduler(), signal.SIGKILL)
    run = await under_way
    assert run.outputs == expected * ROUNDS
    assert len(before - set(server.pids(ENGINE))) == len(before) // 2
    server.until_spares()


async def test_the_first_rank_is_killed_under_load(
    server: OrcaServer, many: list[Request], expected: list[list[int]]
) -> None:
    await hurt_under_load(server, signal.SIGKILL, True, many, expected)


@pytest.mark.chaos
@pytest.mark.parametrize("first", [True, False])
async def test_a_rank_stands_still_under_load(
    server: OrcaServer, first: bool, many: list[Request], expected: list[list[int]]
) -> None:
    """No connection closes."""
    await hurt_under_load(server, signal.SIGSTOP, first, many, expected)


async def hurt_under_load(
    server: OrcaServer, how: signal.Signals, first: bool, many: list[Request], expected: list[list[int]]
) -> None:
    """Send one rank the signal `how`: all processes of its engine are replaced, and the tokens are as expected."""
    server.until_spares()
    before = set(server.pids(ENGINE))
    losses = server.metrics().get("orca:engine_losses_total", 0)
    made = server.metrics()["vllm:generation_tokens_total"]
    under_way = asyncio.create_task(run_over_http(server.url, many))
    await until_tokens(server, made + LENGTH)
    assert not under_way.done()
    os.kill(server.engine() if first else another_rank(server, server.engine()), how)
    run = await under_way
    assert run.outputs == expected * ROUNDS
    await until(lambda: server.metrics().get("orca:engine_losses_total") == losses + 1, PATIENCE)
    server.until_spares()
    assert len(before - set(server.pids(ENGINE))) == len(before) // 2  # the other ranks of its engine were killed, too


async def test_a_scheduler_is_killed_and_the_ranks_keep_their_weights(
    server: OrcaServer, many: list[Request], expected: list[list[int]]
) -> None:
    server.until_spares()
    before, engine = set(server.pids(ENGINE)), server.engine()
    under_way = asyncio.create_task(run_over_http(server.url, many))
    await asyncio.sleep(0.3)
    os.kill(server.scheduler(), signal.SIGKILL)
    run = await under_way
    assert run.outputs == expected * ROUNDS
    assert (set(server.pids(ENGINE)), server.engine()) == (before, engine)


async def until_tokens(server: OrcaServer, count: float) -> None:
    await until(lambda: server.metrics()["vllm:generation_tokens_total"] >= count, PATIENCE, every=0.02)


def another_rank(server: OrcaServer, first: int) -> int:
    """A rank that is connected to rank 0, which is `first`; spares and engines of one rank are not connected."""
    return next(pid for pid in server.pids(ENGINE) if pid != first and "gloo_tcp_loop" in threads(pid))


def threads(pid: int) -> set[str]:
    """The names of the threads of a process."""
    names = set()
    for file in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.add(file.read_text().strip())
    return names
