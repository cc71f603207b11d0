"""Pools on every server of this machine, and on the reference model: one behaviour, so one set of tests."""

import asyncio
import itertools

import pytest
from pool_helpers import WallClock

from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.pool.reference.pool import ReferencePool
from services.pool.server.binaries import find_servers
from services.pool.server.pool_server import PoolServer

SERVERS = find_servers()
_names = itertools.count()


def _name(binary):
    return str(binary).replace(" ", "-") if binary else "reference"


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """The URL of a running server of each binary."""
    started = {binary: PoolServer(binary, tmp_path_factory.mktemp("server")) for binary in SERVERS}
    yield {binary: asyncio.run(server.start()) for binary, server in started.items()}
    for server in started.values():
        asyncio.run(server.stop())


@pytest.fixture(params=SERVERS, ids=_name)
def server_url(request, servers):
    return servers[request.param]


@pytest.fixture(params=[*SERVERS, None], ids=_name)
def any_url(request, servers):
    """As `server_url`, and None for the reference model."""
    return servers[request.param] if request.param else None


@pytest.fixture
async def server_pools(server_url):
    """Makes empty pools on a server; the same name is the same pool."""
    made = []

    async def make(limits=None, name=None):
        pool = RequestPool(server_url, name or f"test-{next(_names)}", limits or Limits())
        await pool.connect()
        made.append(pool)
        return pool

    yield make
    for pool in made:
        await pool.close()


@pytest.fixture
async def pools(any_url):
    """Makes empty pools on each kind of server, and reference pools."""
    made = []

    async def make(**limits):
        bounds = Limits(**limits)
        pool = RequestPool(any_url, f"test-{next(_names)}", bounds) if any_url else ReferencePool(WallClock(), bounds)
        await pool.connect()
        made.append(pool)
        return pool

    yield make
    for pool in made:
        await pool.close()


@pytest.fixture
async def pool(pools):
    return await pools()
