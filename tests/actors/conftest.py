"""Lives to take, a pool to own seats in, and a cluster for engine processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import ray
from actors_lives import Life

from actors.placement import NAMESPACE, remove_engine
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

_names = itertools.count()


@pytest.fixture
def make_life() -> Iterator[Callable[[], Life]]:
    lives: list[Life] = []

    def make() -> Life:
        lives.append(Life())
        return lives[-1]

    yield make
    for life in lives:
        life.kill()


@pytest.fixture
def life(make_life: Callable[[], Life]) -> Life:
    return make_life()


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
    """No engine stays behind for the next test."""
    yield
    await asyncio.to_thread(remove_engine, 0)
