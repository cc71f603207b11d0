"""Error replies of a server in a temporary state raise PoolUnavailable, in all versions, and are logged once."""

import asyncio
import contextlib
import logging
import re
import shutil
from pathlib import Path

import pytest
import redis.asyncio as redis
from pool_helpers import Owner, configured, full_memory, group

from services.errors import PoolDenied, PoolFault, PoolUnavailable
from services.pool.pool import RequestPool


@contextlib.asynccontextmanager
async def too_few_replicas(server_url):
    async with configured(server_url, min_replicas_to_write=1):
        yield


@contextlib.asynccontextmanager
async def a_replica(server_url):
    """The server follows another one, as after a failover."""
    async with redis.Redis.from_url(server_url, protocol=2) as client:
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            yield
        finally:
            await client.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.asynccontextmanager
async def a_replica_without_its_master(server_url):
    async with configured(server_url, replica_serve_stale_data="no"), a_replica(server_url):
        yield


@contextlib.asynccontextmanager
async def a_long_script(server_url):
    async with configured(server_url, lua_time_limit=10) as client:
        endless = asyncio.create_task(client.eval("while true do end", 0))
        async with redis.Redis.from_url(server_url, protocol=2) as other:
            with contextlib.suppress(redis.ResponseError):  # the answer while a script is over its time
                for _ in range(1000):
                    await other.ping()
                    await asyncio.sleep(0.01)
            try:
                yield
            finally:
                await other.script_kill()
                await asyncio.gather(endless, return_exceptions=True)


async def save(client):
    """Write a snapshot; return once it has succeeded or failed."""
    await client.bgsave()
    for _ in range(1000):
        if not (await client.info("persistence"))["rdb_bgsave_in_progress"]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no snapshot within 10 s")


@contextlib.asynccontextmanager
async def a_failed_save(server_url):
    """A snapshot cannot be written, as on a full disk: its file's path is a folder."""
    async with configured(server_url, save="3600 1", stop_writes_on_bgsave_error="yes") as client:
        places = await client.config_get("dir") | await client.config_get("dbfilename")
        in_the_way = Path(places["dir"], places["dbfilename"])
        (in_the_way / "not empty").mkdir(parents=True)
        await client.set("a key", "to save")
        await save(client)
        try:
            yield
        finally:
            shutil.rmtree(in_the_way)
            await save(client)
            await client.delete("a key")


COMMAND = re.compile(rb"(?:^|\r\n)\*\d+\r\n")  # how one begins on the wire

STATES = {
    "OOM": full_memory,
    "NOREPLICAS": too_few_replicas,
    "READONLY": a_replica,
    "MASTERDOWN": a_replica_without_its_master,
    "BUSY": a_long_script,
    "MISCONF": a_failed_save,
}


@pytest.mark.parametrize("code", STATES)
async def test_a_temporary_state_is_unavailable(server_url, server_pools, caplog, code):
    pool = await server_pools()
    owner = await Owner.take(pool)
    await pool.submit(group("before"))
    with caplog.at_level(logging.WARNING, "services.pool.connection"):
        async with STATES[code](server_url):
            for _ in range(2):
                with pytest.raises(PoolUnavailable):
                    await pool.submit(group("during"))
            if code != "OOM":  # accepted requests go on with full memory: test_pool_full_memory.py
                with pytest.raises(PoolUnavailable):
                    await owner.claim()
        assert {reply.request for reply in [await pool.submit(group("after"))]} == {"after"}
    lines = [record.getMessage() for record in caplog.records if " submit" in record.getMessage()]
    assert len(lines) == 2, lines
    assert f"submit ({code})" in lines[0]
    assert lines[1].endswith("submit again")
    assert set(await (await Owner.take(pool, "another")).claim()) == {"before/0", "after/0"}


@pytest.mark.parametrize(
    "answer",
    [
        b"-MOVED 3999 127.0.0.1:6381\r\n",
        b"-ASK 3999 127.0.0.1:6381\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
        b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"$100\r\nhalf a reply",
        b"no protocol at all\r\n",
        b"",
    ],
)
async def test_any_error_reply_of_a_server_in_trouble_is_unavailable(answer):
    """Replies that need a cluster, and invalid ones, from a listener that sends them for every command."""

    async def say(reader, writer):
        while asked := await reader.read(65536):
            commands = len(COMMAND.findall(asked)) if answer.startswith(b"-") else 1
            writer.write(answer * commands)
            await writer.drain()
            if not answer.startswith(b"-"):
                writer.close()

    listener = await asyncio.start_server(say, "127.0.0.1", 0)
    pool = RequestPool(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    for call in (pool.connect, pool.overview, lambda: pool.submit(group("r")), lambda: pool.read_events("g", "0", 0.1)):
        with pytest.raises(PoolUnavailable):
            await call()
    await pool.close()
    listener.close()


async def test_a_wrong_password_is_denied(server_url, server_pools):
    await server_pools()
    async with configured(server_url, requirepass="secret") as client:
        await client.auth("secret")
        pool = RequestPool(server_url.replace("unix://", "unix://:wrong@"))
        with pytest.raises(PoolDenied):
            await pool.connect()
        await pool.close()


async def test_a_fault_in_a_script_is_not_an_outage(server_pools):
    pool = await server_pools()
    with pytest.raises(PoolFault, match="user_script"):
        await pool._server.run("submit", pool._prefix, b"\xc1, which begins no message pack")


async def test_a_failover_ends_the_wait_for_a_bell(server_url, server_pools):
    """A server that becomes a replica ends blocked calls with an error code of its own."""
    pool = await server_pools()
    waiting = asyncio.create_task(pool.wait_bell("s", 20))
    events = asyncio.create_task(pool.read_events("g", "0", 20))
    async with redis.Redis.from_url(server_url, protocol=2) as client:
        for _ in range(1000):
            if (await client.info("clients"))["blocked_clients"] == 2:
                break
            await asyncio.sleep(0.01)
    async with a_replica(server_url):
        for blocked in (waiting, events):
            with pytest.raises(PoolUnavailable):
                await blocked
