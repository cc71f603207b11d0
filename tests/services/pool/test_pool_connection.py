"""Connections: a server that is away, that has lost the scripts or that refuses us; concurrent and cancelled calls."""

import asyncio

import pytest
from pool_helpers import Owner, group

from services.errors import PoolUnavailable
from services.pool.pool import RequestPool


async def test_a_server_that_is_not_there(tmp_path):
    pool = RequestPool(f"unix://{tmp_path}/none.sock")
    for call in (pool.connect, pool.overview):
        with pytest.raises(PoolUnavailable, match="does not answer"):
            await call()
    with pytest.raises(PoolUnavailable):
        await pool.wait_bell("seat", 0.01)
    await pool.close()


async def test_scripts_that_a_server_has_lost_are_sent_again(server_pools):
    pool = await server_pools()
    await pool._server.command("SCRIPT", "FLUSH")
    await pool.submit(group("r"))
    assert await (await Owner.take(pool)).claim() == ["r/0"]


async def test_two_clients_of_one_name_share_a_pool(server_pools):
    one = await server_pools()
    two = await server_pools(name=one.name)
    await one.submit(group("r"))
    assert await two.overview() == await one.overview()
    assert (await (await server_pools()).overview()).waiting == 0


async def test_many_calls_at_once(server_pools):
    pool = await server_pools()
    replies = await asyncio.gather(*(pool.submit(group(f"r{i}")) for i in range(200)))
    assert [reply.request for reply in replies] == [f"r{i}" for i in range(200)]
    assert (await pool.overview()).waiting == 200


async def test_a_reader_does_not_hold_up_scripts(server_pools):
    pool = await server_pools()
    readers = [asyncio.create_task(pool.read_events(f"g{i}", "0", 60)) for i in range(40)]
    await asyncio.sleep(0.05)
    await asyncio.wait_for(pool.submit(group("r")), 30)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def test_a_refused_password_is_reported():
    reader_count = 0

    async def impostor(reader, writer):
        nonlocal reader_count
        reader_count += 1
        await reader.read(100)
        writer.write(b"-NOAUTH Authentication required.\r\n" * 4)
        await writer.drain()

    listener = await asyncio.start_server(impostor, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    pool = RequestPool(f"redis://127.0.0.1:{port}")
    with pytest.raises(PoolUnavailable, match="Authentication required"):
        await pool.connect()
    await pool.close()
    listener.close()
    assert reader_count == 1


@pytest.mark.parametrize("name", ["", "a b", "{x}", "ä", "x" * 73])
def test_a_pools_name_is_checked(name):
    with pytest.raises(ValueError, match="a pool's name is"):
        RequestPool("redis://127.0.0.1:1", name)


@pytest.mark.parametrize("method", ["overview", "connect"])
async def test_a_call_can_be_cancelled_at_any_moment(server_pools, method):
    pool = await server_pools()
    for steps in range(50):
        call = asyncio.create_task(getattr(pool, method)())
        for _ in range(steps):
            await asyncio.sleep(0)
        if call.cancel():
            await asyncio.wait([call])
            assert call.cancelled(), f"not after {steps} steps of the event loop"


async def test_the_reply_to_a_cancelled_command_goes_to_no_other(server_pools):
    pool = await server_pools()
    for steps in range(30):
        call = asyncio.create_task(pool._server.command("ECHO", f"cancelled after {steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        assert await pool._server.command("ECHO", steps) == str(steps).encode()
        await asyncio.wait([call])
