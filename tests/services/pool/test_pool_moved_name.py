"""A server under one name that moves to another machine, as managed ones do: a port whose server changes."""

import asyncio

import pytest
from pool_helpers import Owner, forward, group
from test_pool_refusals import a_replica

from services.errors import PoolUnavailable
from services.pool import connection
from services.pool.pool import RequestPool
from services.pool.server.pool_server import PoolServer


class Name:
    """A port that forwards each connection to the server that it stood for when the connection was opened."""

    def __init__(self, url):
        self.url = url  # of the server that it stands for

    async def forward(self, reader, writer):
        await forward(reader, writer, self.url.removeprefix("unix://"))


@pytest.fixture
async def moved(servers, server_url, tmp_path):
    """A pool under a name that stands for `server_url`, and a function that moves the name to another server."""
    other = PoolServer(next(binary for binary, url in servers.items() if url == server_url), tmp_path)
    name = Name(server_url)
    async with await asyncio.start_server(name.forward, "127.0.0.1", 0) as listener:
        pool = RequestPool(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "moved")

        async def move():
            name.url = await other.start()

        yield pool, move
        await pool.close()
        listener.close()
    await other.stop()


async def test_calls_and_reads_go_to_the_new_server_once_the_earlier_one_is_a_replica(moved, server_url):
    pool, move = moved
    await pool.submit(group("before"))
    await pool.read_events("gateway", "0", 0.01)
    await move()
    assert (await pool.overview()).waiting == 1  # its connections are still open
    async with a_replica(server_url):
        with pytest.raises(PoolUnavailable, match="READONLY"):
            await pool.submit(group("after"))
        assert (await pool.submit(group("after"))).request == "after"
        assert (await pool.overview()).waiting == 1  # of the new server, which has no data of the earlier one
        assert not pool._server._to_blocking._kept
        owner = await Owner.take(pool)
        assert await owner.claim() == ["after/0"]
    await pool.delete("after")


async def test_a_silent_server_is_left_after_one_call(moved, monkeypatch):
    pool, move = moved
    """After a call without an answer, all connections are opened again."""
    await asyncio.gather(*(pool.submit(group(f"r{i}")) for i in range(8)))
    await pool.wait_bell("seat", 0.01)
    scripts, blocking = pool._server._to_scripts, pool._server._to_blocking
    assert len(scripts._kept) > 1
    assert blocking._kept
    await move()
    monkeypatch.setattr(connection, "SCRIPT_TIMEOUT", 0.05)
    with pytest.raises(PoolUnavailable):  # it does not answer in time
        await pool._server.command("BLPOP", "nothing", "1")
    assert not scripts._kept + blocking._kept
    monkeypatch.undo()
    assert (await pool.overview()).waiting == 0
