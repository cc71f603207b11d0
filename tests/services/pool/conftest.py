"""Pools on the servers of this machine and on the reference model, which pass the same tests."""

import asyncio
import contextlib
import itertools

import pytest
from pool_helpers import Clock, ClockedPool
from pool_servers import ONE_OF_ALL, SERVERS

from load.reference.pool import ReferencePool
from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.pool.server.pool_server import PoolServer

_names = itertools.count()


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """The URL of a running server of each binary."""
    started = {binary: PoolServer(binary, tmp_path_factory.mktemp("server")) for binary in SERVERS}
    yield {binary: asyncio.run(server.start()) for binary, server in started.items()}
    for server in started.values():
        asyncio.run(server.stop())


@pytest.fixture(params=ONE_OF_ALL)
def server_url(request, servers):
    return servers[request.param]


@pytest.fixture(params=[*ONE_OF_ALL, pytest.param(None, id="reference")])
def any_url(request, servers):
    """As `server_url`; None for the reference model."""
    return servers[request.param] if request.param else None


@contextlib.asynccontextmanager
async def opened(url):
    """A function that makes an empty pool on a server; without a URL, of the reference model. The same name gives the
    same pool."""
    made, clock = [], Clock()

    async def make(limits=None, name=None):
        name = name or f"test-{next(_names)}"
        pool = ClockedPool(url, name, limits, clock) if url else ReferencePool(clock, limits)
        await pool.connect()
        made.append(pool)
        return pool

    yield make
    for pool in made:
        await pool.close()


@pytest.fixture
async def server_pools(server_url):
    async with opened(server_url) as make:
        yield make


@pytest.fixture
async def pools_of(sentinels):
    """A function that makes a pool behind the fixture `sentinels` of a module. The same name gives the same pool."""
    made = []

    def make(name, url=None, wait_replicas=0):
        made.append(RequestPool(url or sentinels.url, name, wait_replicas=wait_replicas))
        return made[-1]

    yield make
    for pool in made:
        await pool.close()


@pytest.fixture
async def pools(any_url):
    """A function that makes an empty pool: on each kind of server, and of the reference model."""
    async with opened(any_url) as make:
        yield lambda **limits: make(Limits(**limits))


@pytest.fixture
async def pool(pools):
    return await pools()
