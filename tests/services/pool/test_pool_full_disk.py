"""A full disk is logged once, the server is restarted once there is space, and no acknowledged write is lost."""

import logging
import os
from pathlib import Path

import pytest
import small_disk as disks
from pool_helpers import ROOM, Owner, commit, group, stored, until_done
from pool_servers import ONE_OF_ALL

from load.server import until
from services.errors import PoolUnavailable
from services.pool.pool import RequestPool
from services.pool.server.pool_server import PoolServer
from services.pool.server.resources import has_disk_space

SIZE = 24 << 20  # bytes of the disk
LONG = range(1 << 16)  # a prompt of 256 KiB


@pytest.fixture
def small_disk(tmp_path):
    with disks.small_disk(tmp_path / "disk", SIZE) as folder:
        yield folder


@pytest.fixture(params=ONE_OF_ALL)
def binary(request):
    return request.param


@pytest.mark.parametrize("durability", ["everysec", "strict"])
async def test_a_full_disk_is_waited_for(binary, small_disk, durability, caplog):
    server = PoolServer(binary, small_disk, durability)
    pool = RequestPool(await server.start())
    await pool.connect()
    owner = await Owner.take(pool)
    await pool.submit(group("before"))
    await owner.exchange(room=ROOM)
    await owner.exchange(commit("before/0", 0, 5))
    with caplog.at_level(logging.WARNING):
        fill(small_disk)
        acknowledged = await submit_until_refused(pool)
        if durability == "strict":  # the server exits, and is not started again yet
            await until(lambda: "is full" in caplog.text)
        for _ in range(3):
            with pytest.raises(PoolUnavailable):
                await pool.heartbeat("gateway", 1, {})
        (small_disk / "filling").unlink()
        await until_done(lambda: pool.heartbeat("gateway", 1, {}))
    assert (await owner.exchange(commit("before/0", 1, 6))).owned
    await server.stop()  # from here on, it has only what its file has
    await server.start()
    await until_done(lambda: pool.heartbeat("gateway", 1, {}))
    assert (await stored(pool, "before/0")).tokens == [5, 6]
    assert [(await stored(pool, f"{name}/0")).known for name in acknowledged] == [True] * len(acknowledged)
    said = [record.getMessage() for record in caplog.records]
    if durability == "strict":
        assert [line for line in said if "is full" in line] == [
            f"the disk of {small_disk} is full: the pool's server is started again once it has space"
        ]
        assert sum("died" in line for line in said) == 1
    else:
        assert sum("heartbeat (MISCONF)" in line for line in said) == 1
        assert not any("died" in line for line in said)
    await pool.close()
    await server.stop()


def fill(folder: Path):
    """Fill the disk except for a few bytes."""
    state = os.statvfs(folder)
    left = state.f_bavail * state.f_frsize
    with open(folder / "filling", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, left - (1 << 20))
    assert not has_disk_space(folder)


async def submit_until_refused(pool):
    """The requests that the pool accepted."""
    taken = []
    while len(taken) < 100:
        try:
            await pool.submit(group(f"r{len(taken)}", prompt=LONG))
        except PoolUnavailable:
            return taken
        taken.append(f"r{len(taken)}")
    raise AssertionError("the disk is not full")
