"""Connections that stay open between calls: after an error reply, a cancelled call, and one that the server closed."""

import asyncio

import pytest
from redis.exceptions import ResponseError
from test_pool_refusals import a_replica

from services.errors import PoolUnavailable
from services.pool.connection import SCRIPT_CONNECTIONS, Connection


@pytest.fixture
async def server(server_url):
    server = Connection(server_url)
    yield server
    await server.close()


async def own_id(server):
    return (await server._to_scripts.pipeline(5, ("CLIENT", "ID")))[0]


async def test_the_next_call_uses_the_same_connection_also_after_an_error_reply(server):
    first = await own_id(server)
    with pytest.raises(ResponseError):
        await server._to_scripts.pipeline(5, ("NONSENSE",))
    assert await own_id(server) == first


async def test_a_late_reply_is_not_taken_for_the_next_one(server):
    kept = server._to_blocking
    (first,) = await kept.pipeline(5, ("CLIENT", "ID"))
    waiting = asyncio.create_task(kept.pipeline(60, ("BLPOP", "a-list", "60")))
    while b"blpop" not in await server.command("CLIENT", "LIST", "ID", first):  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await server.command("LPUSH", "a-list", "late")
    assert await kept.pipeline(5, ("ECHO", "next")) == [b"next"]
    await server.command("DEL", "a-list")


async def test_a_connection_that_the_server_closed_while_it_was_idle_is_opened_again(server):
    first = await own_id(server)
    admin = Connection(server.url)
    await admin.command("CLIENT", "KILL", "ID", first)
    await admin.close()
    assert await own_id(server) > first


async def test_after_a_failover_all_connections_are_opened_again(server):
    """The name in the URL may belong to another server by then."""
    last = max(await asyncio.gather(*(own_id(server) for _ in range(3))))
    async with a_replica(server.url):
        with pytest.raises(PoolUnavailable):
            await server.command("SET", "a-key", "1")
        assert not server._to_scripts._kept
        assert await own_id(server) > last


async def test_more_calls_than_connections(server):
    calls = [server.command("ECHO", str(i)) for i in range(8 * SCRIPT_CONNECTIONS)]
    assert await asyncio.gather(*calls) == [b"%d" % i for i in range(8 * SCRIPT_CONNECTIONS)]
    assert len(server._to_scripts._kept) <= SCRIPT_CONNECTIONS


async def test_connections_that_the_check_has_left_are_opened_again_too(server):
    await server.check()
    last = await server._scripts.client_id()
    await server._reopen()
    assert await own_id(server) > last
