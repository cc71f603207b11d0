"""PoolServer: finding a server, starting it on a folder, restarting it when it dies, never two on one folder."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from pool_helpers import Owner, commit, counts, group, stored, until_done
from pool_servers import ONE_OF_ALL, SERVERS, TcpServer

from services.errors import PoolUnavailable
from services.pool.pool import RequestPool
from services.pool.server import binaries
from services.pool.server.binaries import ServerBinary, choose_server
from services.pool.server.pool_server import PoolServer
from services.pool.server.resources import max_memory


@pytest.fixture(params=ONE_OF_ALL)
async def make_server(request, tmp_path):
    """A function that makes servers of one kind, by default on one folder; they are stopped in the end."""
    made = []

    def make(folder=tmp_path, **more):
        made.append((TcpServer if "port" in more else PoolServer)(request.param, folder, **more))
        return made[-1]

    yield make
    for server in made:
        await server.stop()


def test_all_wheels_are_found():
    versions = set(map(str, SERVERS))
    assert {"valkey 8.1.8", "redis 6.2.14"} <= versions


def test_a_server_on_the_path_comes_first(tmp_path, monkeypatch):
    fake = tmp_path / "redis-server"
    fake.write_text("#!/bin/sh\necho 'Redis server v=7.2.4 sha=00000000:0 malloc=libc bits=64 build=0'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert choose_server() == ServerBinary(fake, "redis", (7, 2, 4))


@pytest.mark.parametrize("says", ["Redis server v=6.0.9 sha=0 bits=64", "something else"])
def test_old_servers_and_other_programs_are_ignored(tmp_path, monkeypatch, says):
    fake = tmp_path / "redis-server"
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert choose_server().path != fake


async def test_a_server_inherits_no_settings_and_no_secrets(tmp_path, monkeypatch):
    real = choose_server()
    program = tmp_path / "server"
    program.write_text(f'#!/bin/sh\nenv > {tmp_path}/told\nexec {real.path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("ORCA_API_KEY", "a-word")
    monkeypatch.setenv("CLOUD_TOKEN", "a-word")
    monkeypatch.setenv("TZ", "UTC")
    server = PoolServer(replace(real, path=program), tmp_path)
    await server.start()
    await server.stop()
    told = (tmp_path / "told").read_text()
    assert "TZ=UTC" in told
    assert "a-word" not in told


async def test_settings_of_a_server_that_was_just_started_stay(make_server):
    server = make_server()
    await server.start()
    assert "cmdstat_config" not in str(await server._ask("INFO", "commandstats"))
    assert int((await server._ask("CONFIG", "GET", "maxmemory"))[1]) == server._max_memory


def test_no_server_at_all_says_what_to_do(monkeypatch):
    monkeypatch.setattr(binaries, "_IN_WHEELS", {})
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PoolUnavailable, match="--redis-url"):
        choose_server()


async def test_requests_survive_a_killed_server(make_server):
    server = make_server(durability="strict")
    pool = RequestPool(await server.start())
    await pool.submit(group("r"))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 5))
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    snapshot = await until_done(lambda: stored(pool, "r/0"))
    assert snapshot.tokens == [5]
    assert server.pid != killed
    assert (await owner.exchange(commit("r/0", 1, 6))).owned
    await pool.close()


async def test_a_later_start_takes_over_the_running_server(make_server):
    first = make_server()
    pool = RequestPool(await first.start())
    await pool.submit(group("r"))
    second = make_server(durability="strict")
    assert await second.start() == first.url
    assert second.pid == first.pid
    assert await counts(pool) == (1, 0, 0)
    assert await pool._server.command("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
    await pool.close()


async def test_only_the_last_user_stops_the_server(make_server):
    first, second = make_server(), make_server()
    pool = RequestPool(await first.start())
    await second.start()
    assert not await first.stop()
    await pool.submit(group("r"))
    assert await second.stop()
    assert not second._alive()
    await pool.close()


async def test_a_server_whose_user_was_killed_is_stopped_by_the_next(make_server):
    killed, following = make_server(), make_server()
    await killed.start()
    killed._supervisor.cancel()
    killed._users.leave()  # as the kernel does
    await following.start()
    assert following.pid == killed.pid
    assert await following.stop()


async def test_a_child_process_that_outlives_its_parent_is_a_user(make_server):
    killed, following = make_server(), make_server()
    place = await killed.join()
    await killed.start()
    child = await asyncio.create_subprocess_exec("sleep", "60", pass_fds=(place,))
    killed._supervisor.cancel()
    killed._users.leave()
    await following.start()
    assert not await following.stop()
    child.kill()
    await child.wait()
    await following.start()
    assert await following.stop()


async def test_another_user_does_not_weaken_durability(make_server):
    strict, other = make_server(durability="strict"), make_server()
    pool = RequestPool(await strict.start())
    await other.start()
    assert await pool._server.command("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
    await pool.close()


async def test_maxmemory_is_that_of_the_largest_pool_of_its_users(make_server):
    bounds = []
    for max_bytes in (2 << 20, 4 << 20, 3 << 20):
        server = make_server(max_bytes=max_bytes)
        await server.start()
        bounds.append(int((await server._ask("CONFIG", "GET", "maxmemory"))[1]))
    assert bounds == [max_memory(2 << 20), max_memory(4 << 20), max_memory(4 << 20)]
    assert (await server._ask("CONFIG", "GET", "maxmemory-policy"))[1] == b"noeviction"


async def test_two_starts_at_once_give_one_server(make_server):
    one, two = make_server(), make_server()
    await asyncio.gather(one.start(), two.start())
    assert one.pid == two.pid


async def test_a_stopped_server_keeps_its_requests(make_server):
    server = make_server()
    pool = RequestPool(await server.start())
    await pool.submit(group("r"))
    await server.stop()
    assert not server._alive()
    with pytest.raises(PoolUnavailable):
        await pool.overview()
    await server.start()
    assert await counts(pool) == (1, 0, 0)
    await pool.close()


async def test_a_start_ends_when_the_file_is_loaded(make_server, monkeypatch):
    """While a server loads, it answers `INFO` and refuses all that the pool calls."""
    server = make_server()
    pool = RequestPool(await server.start())
    for i in range(100):
        await pool.submit(group(f"r{i}", n=20))
    await server.stop()
    slowly = [*server._command(), "--key-load-delay", "50"]  # microseconds for each command in the file
    monkeypatch.setattr(server, "_command", lambda: slowly)
    await server.start()
    assert await counts(pool) == (2000, 0, 0)
    await pool.close()


async def test_a_folder_with_a_long_name(make_server, tmp_path):
    server = make_server(tmp_path / ("x" * 120))
    pool = RequestPool(await server.start())
    await pool.connect()
    await pool.close()


async def test_an_error_of_a_server_that_cannot_start_names_its_log(make_server, unused_tcp_port):
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", unused_tcp_port)
    with pytest.raises(PoolUnavailable, match=r"server\.log"):
        await make_server(port=unused_tcp_port).start()
    listener.close()


async def test_an_older_server_does_not_start_empty_on_the_file_of_a_newer_one(tmp_path):
    (tmp_path / "appendonlydir").mkdir()
    oldest = min(SERVERS, key=lambda binary: binary.version)
    assert oldest.version < (7,)
    with pytest.raises(PoolUnavailable, match="written by a newer server"):
        await PoolServer(oldest, tmp_path).start()


async def test_a_start_can_be_cancelled_at_every_turn_of_the_event_loop(make_server):
    """`orca serve` cancels the start on Ctrl-C. The server runs already, so that a start takes few turns."""
    await make_server().start()
    for turns in range(1000):
        server = make_server()
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = starting.done()
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled() != ended, f"lost after {turns} turns"
        await server.stop()
        if ended:
            break
    assert ended


async def test_a_dead_server_is_restarted_after_a_fault_of_its_supervisor(tmp_path, monkeypatch):
    """For example, the disk is full when the server should be restarted."""
    server, failed = PoolServer(choose_server(), tmp_path), asyncio.Event()
    await server.start()
    before, started_again = server.pid, server._ensure

    async def no_space(timeout):
        monkeypatch.setattr(server, "_ensure", started_again)
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server, "_ensure", no_space)
    os.kill(before, signal.SIGKILL)
    try:
        await asyncio.wait_for(failed.wait(), 20)
        async with asyncio.timeout(20):
            while server.pid == before:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await server.stop()
