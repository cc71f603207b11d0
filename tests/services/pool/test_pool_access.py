"""Access control of the pool's server: a user with only the commands that a pool needs, a password, TLS."""

import asyncio
import contextlib
import re
import ssl
from functools import partial
from pathlib import Path

import pytest
from pool_helpers import ROOM, Owner, forward, group

from services.errors import PoolDenied, PoolUnavailable
from services.pool.pool import RequestPool
from tests.services.settings.test_exposure import self_signed

ROOT = Path(__file__).parents[3]
PASSWORD = "p@ss/word:1"
QUOTED = "p%40ss%2Fword%3A1"


def documented_rules():
    """The rules of the line `ACL SETUSER` in docs/security.md."""
    (line,) = re.findall(r"^ACL SETUSER orca (.+)$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    return line.replace(">PASSWORD", f">{PASSWORD}").replace("NAME", "acl").split()


@pytest.fixture
async def admin(server_url):
    pool = RequestPool(server_url, "admin")
    yield pool
    await pool._server.command("ACL", "DELUSER", "orca")
    await pool.close()


@contextlib.asynccontextmanager
async def opened(url, name):
    pool = RequestPool(url, name)
    try:
        yield pool
    finally:
        await pool.close()


async def use(pool):
    """The whole life of a request, and each other kind of call."""
    await pool.connect()
    await pool.heartbeat("gateway", 1, {"a": 1.0})
    await pool.submit(group("r", key="k"))
    await pool.wait_bell("seat", 0.01)
    owner = await Owner.take(pool)
    assert await owner.claim() == ["r/0"]
    await owner.exchange(room=ROOM)
    assert await pool.read_events("gateway", "0", 0.01) is not None
    assert (await pool.overview()).running == 1
    await pool.cancel("r")
    assert await pool.hold("name", "holder", 10)
    await pool.unhold("name", "holder")
    await pool.release(owner.seat, owner.epoch)
    await pool.delete("r")
    await pool.unregister("gateway")
    broadcast = pool.broadcast()
    async with asyncio.timeout(20):
        listening = asyncio.create_task(anext(broadcast.listen("live")))
        while not listening.done():  # until it has subscribed
            await broadcast.publish("live", b"message")
            await asyncio.sleep(0.01)
        assert await listening == b"message"
    await broadcast.close()


async def test_the_documented_user_may_do_all_that_a_pool_needs(admin, server_url):
    await admin._server.command("ACL", "SETUSER", "orca", "reset", *documented_rules())
    assert server_url.startswith("unix://")
    async with opened(server_url.replace("unix://", f"unix://orca:{QUOTED}@"), "acl") as pool:
        await use(pool)
        for forbidden in (("CONFIG", "GET", "*"), ("FLUSHALL",), ("KEYS", "*"), ("HGET", "orca:{other}:x", "f")):
            with pytest.raises(PoolUnavailable):
                await pool._server.command(*forbidden)
    async with opened(server_url.replace("unix://", f"unix://orca:{QUOTED}@"), "other") as pool:
        with pytest.raises((PoolDenied, PoolUnavailable)):
            await use(pool)


async def test_an_error_does_not_show_the_wrong_password(admin, server_url, caplog):
    await admin._server.command("ACL", "SETUSER", "orca", "reset", *documented_rules())
    async with opened(server_url.replace("unix://", "unix://orca:hidden-word@"), "acl") as pool:
        with pytest.raises(PoolDenied) as raised:
            await pool.connect()
    assert "hidden-word" not in str(raised.value) + caplog.text
    assert "WRONGPASS" in str(raised.value) or "invalid username-password" in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hidden@h:1/0", "redis://h:1/0"),
        ("rediss://:hid@den@h", "rediss://h"),
        ("unix:///s.sock?password=hidden", "unix:///s.sock"),
    ],
)
def test_the_url_in_errors_has_no_password(url, shown):
    assert RequestPool(url, "p")._server._shown == shown


@contextlib.asynccontextmanager
async def tls_in_front(socket_path, certificate, key):
    """The port of a TLS server that forwards all data to the socket of a pool server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    serve = partial(forward, socket_path=socket_path)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
        server.close()


async def test_rediss_needs_a_trusted_certificate(admin, server_url, tmp_path):
    await admin._server.command("ACL", "SETUSER", "orca", "reset", *documented_rules())
    certificate, key = self_signed(tmp_path)
    async with tls_in_front(server_url.removeprefix("unix://"), certificate, key) as port:
        url = f"rediss://orca:{QUOTED}@localhost:{port}/0"
        async with opened(f"{url}?ssl_ca_certs={certificate}", "acl.tls") as pool:
            await use(pool)
        async with opened(url, "acl") as pool:
            with pytest.raises(PoolUnavailable, match="certificate"):
                await pool.connect()
        async with opened(f"redis://localhost:{port}", "acl") as pool:
            with pytest.raises(PoolUnavailable):
                await pool.connect()
