"""Processes to kill, a pool with seats, and a Ray cluster for engine processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import ray
from lifeline_process import LifelineProcess

from actors.placement import NAMESPACE, remove_engine
from services import background
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

_names = itertools.count()


@pytest.fixture(autouse=True)
def spares_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares start without a pause for requests that may come."""
    monkeypatch.setattr(background, "QUIET", 0.0)


@pytest.fixture
def make_holder() -> Iterator[Callable[[], LifelineProcess]]:
    processes: list[LifelineProcess] = []

    def make() -> LifelineProcess:
        processes.append(LifelineProcess())
        return processes[-1]

    yield make
    for holder in processes:
        holder.kill()


@pytest.fixture
def holder(make_holder: Callable[[], LifelineProcess]) -> LifelineProcess:
    return make_holder()


@pytest.fixture(scope="session")
def pool_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = PoolServer(choose_server(), tmp_path_factory.mktemp("pool"))
    yield asyncio.run(server.start())
    asyncio.run(server.stop())


@pytest.fixture
async def pool(pool_url: str) -> AsyncIterator[RequestPool]:
    pool = RequestPool(pool_url, f"actors-{next(_names)}")
    await pool.connect()
    yield pool
    await pool.close()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=150 << 20,
        log_to_driver=False,
        namespace=NAMESPACE,
    )
    yield
    ray.shutdown()


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """Removes the engine of the test."""
    yield
    await asyncio.to_thread(remove_engine, "0")
