"""`wait_replicas`: what a caller is told, its replicas have; without them, nothing is told."""

import asyncio
import contextlib
import os
import signal
import subprocess
from urllib.parse import urlsplit

import pytest
import redis.asyncio as redis
from pool_helpers import Owner, all_events, commit, group
from pool_servers import ONE_OF_ALL, SERVERS, TcpServer

from load.server import free_port
from services.errors import PoolUnavailable
from services.pool import connection
from services.pool.pool import RequestPool


@pytest.fixture(params=ONE_OF_ALL, scope="module")
def master_and_replica(request, tmp_path_factory):
    """The URL of a server, and the process of its replica, which is in sync."""
    port = free_port()
    server = TcpServer(request.param, tmp_path_factory.mktemp("master"), port=port)
    url = asyncio.run(server.start())
    folder = tmp_path_factory.mktemp("replica")
    options = ("--port", str(free_port()), "--dir", str(folder), "--logfile", f"{folder}/log")
    command = [str(request.param.path), *options, "--replicaof", "127.0.0.1", str(port), "--save", ""]
    replica = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(in_sync(url))
        yield url, replica
    finally:
        replica.kill()
        replica.wait()
        asyncio.run(server.stop())


async def in_sync(url):
    async with redis.Redis.from_url(url, protocol=2) as client:
        await client.config_set("repl-diskless-sync-delay", 0)
        async with asyncio.timeout(30):
            while (await client.info("replication")).get("slave0", {}).get("state") != "online":  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
async def pools(master_and_replica):
    """A function that opens the pool `shared` anew."""
    made = []

    def make(wait_replicas):
        made.append(RequestPool(master_and_replica[0], "shared", wait_replicas=wait_replicas))
        return made[-1]

    yield make
    for pool in made:
        await pool.close()


@contextlib.contextmanager
def stopped(process, monkeypatch):
    """Nobody waits for it long, but then only: a replica that works may be slow."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(connection, "WAIT_TIMEOUT", 0.1)
            yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def test_nothing_is_told_that_the_replica_does_not_have(master_and_replica, pools, monkeypatch, request):
    name = request.node.name
    careful, careless = pools(1), pools(0)
    await careful.submit(group(f"{name} before"))
    owner = await Owner.take(careless, name)
    assert await owner.claim() == [f"{name} before/0"]
    with stopped(master_and_replica[1], monkeypatch):
        with pytest.raises(PoolUnavailable, match="0 of 1 replicas"):
            await careful.submit(group(f"{name} during"))
        await owner.exchange(commit(f"{name} before/0", 0, 7))
        for call in (
            lambda: careful.read_events("gateway", "0", 1),
            lambda: careful.listen("gateway", {f"{name} before/0": 0}),
            lambda: careful.cancel(f"{name} before"),
        ):
            with pytest.raises(PoolUnavailable, match="0 of 1 replicas"):
                await call()
        assert len(await all_events(careless)) == 1  # it is there, and is shown where nobody waits
    assert (await careful.submit(group(f"{name} during"))).existed
    assert len(await all_events(careful)) == 1
    await careful.delete(f"{name} during")
    await owner.pool.release(owner.seat, owner.epoch)
    await careful.unregister("gateway")


async def test_a_read_is_confirmed_by_a_write(master_and_replica, pools, monkeypatch, request):
    """The reader's own connection has written nothing since, so that WAIT alone would return at once."""
    pool = pools(1)
    await pool.submit(group(request.node.name))
    with stopped(master_and_replica[1], monkeypatch):
        with pytest.raises(PoolUnavailable, match="0 of 1"):
            await pool.delete(request.node.name)
        with pytest.raises(PoolUnavailable, match="0 of 1"):
            await pool._run("confirm")
    await pool._run("confirm")


async def test_a_later_master_does_not_confirm_what_an_earlier_one_tells(master_and_replica, tmp_path, monkeypatch):
    """A read blocks at a master that does not know of the failover yet; all other calls go to its successor."""
    server = TcpServer(SERVERS[0], tmp_path, port=free_port())
    url = await server.start()
    pool, earlier = RequestPool(url, "moved", wait_replicas=1), RequestPool(url, "moved")
    await pool.connect()
    await earlier.submit(group("r"))
    owner = await Owner.take(earlier)
    assert await owner.claim() == ["r/0"]
    reading = asyncio.create_task(pool.read_events("gateway", "0", 30))
    while not (await earlier._server._scripts.info("clients"))["blocked_clients"]:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    parts = urlsplit(master_and_replica[0])
    pool._server._nodes.move_to(parts.hostname, parts.port)
    await pool._server._reopen()
    try:
        assert (await pool.overview()).waiting == 0  # of the successor, which has a replica
        monkeypatch.setattr(connection, "WAIT_TIMEOUT", 0.1)
        await owner.exchange(commit("r/0", 0, 7))
        with pytest.raises(PoolUnavailable, match="0 of 1 replicas"):
            await reading
    finally:
        for one in (pool, earlier):
            await one.close()
        await server.stop()


async def test_a_replica_is_no_pool_also_for_what_only_reads(master_and_replica):
    """After a failover an earlier master may be one. WAIT on it is an error without a code."""
    arguments = master_and_replica[1].args
    pool = RequestPool(f"redis://127.0.0.1:{arguments[arguments.index('--port') + 1]}", "shared", wait_replicas=1)
    with pytest.raises(PoolUnavailable, match="READONLY"):
        await pool.overview()
    await pool.close()


async def test_a_server_without_replicas_serves_nobody_who_waits_for_some(server_url, monkeypatch):
    monkeypatch.setattr(connection, "WAIT_TIMEOUT", 0.05)
    pool = RequestPool(server_url, "no-replicas", wait_replicas=2)
    with pytest.raises(PoolUnavailable, match="0 of 2 replicas"):
        await pool.submit(group("r"))
    await pool.close()
