"""`orca engines`: which pool and cluster it finds, what it prints, and what it waits for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cli import engines
from cli import main as orca
from services.errors import OrcaError, PoolUnavailable, UsageError
from services.messages import EngineFigures, Exchange, Room
from services.pool.pool import LAYOUT, RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

FIGURES = EngineFigures("tiny", 128, 64, 16, 1000, "float32/cpu")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = PoolServer(choose_server(), tmp_path_factory.mktemp("pool"))
    yield asyncio.run(server.start())
    asyncio.run(server.stop())


@pytest_asyncio.fixture
async def pool(url: str, request: pytest.FixtureRequest) -> AsyncIterator[RequestPool]:
    """A pool with one cluster, named after the test, and one scheduler, whose engine is ready."""
    pool = RequestPool(url, f"test.{LAYOUT}.null")
    await pool.engines(request.node.name, 1)
    epoch = await take(pool, f"{request.node.name}/0")
    yield pool
    await pool.release(f"{request.node.name}/0", epoch)
    await pool.close()


async def take(pool: RequestPool, seat: str, ready: bool = True) -> str:
    epoch = (await pool.acquire(seat, "10.0.0.1:4000/77", 600)).epoch
    gauges = {"ready": float(ready), "kv_usage": 0.25}
    await pool.exchange(Exchange(seat, epoch, 1, [], Room(0, 0, 1), figures=FIGURES, gauges=gauges))
    return epoch


async def run(url: str, *arguments: str) -> None:
    """Run the command beside this event loop."""
    await asyncio.to_thread(engines.run, ["--redis-url", url, *arguments])


async def test_it_shows_each_seat(pool: RequestPool, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    await run(url)
    head, _, seat = capsys.readouterr().out.splitlines()
    assert head == f"cluster test_it_shows_each_seat, model tiny, pool test.{LAYOUT}.null: 1 of 1 engines are ready"
    (epoch,) = [seat.epoch for seat in (await pool.overview()).seats if seat.alive]
    assert seat.split() == ["0", epoch, "yes", "10.0.0.1:4000/77", "0", "16", "of", "64"]


async def test_it_waits_until_the_engines_are_ready(
    pool: RequestPool, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what it may wait for."""
    name, said = "test_it_waits_until_the_engines_are_ready", ""
    monkeypatch.setattr(engines, "PATIENCE", 0.0)
    running = asyncio.create_task(run(url, "2"))
    while engines.HINT not in said:
        await asyncio.sleep(0.01)
        said += capsys.readouterr().err
    while (await pool.engines(name, 1)).wanted < 2:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)
    epoch = await take(pool, f"{name}/1")
    await asyncio.wait_for(running, 30)
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 engines are ready"
    running = asyncio.create_task(run(url, "1"))
    while not (await pool.engines(name, 1)).surplus:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await pool.release(f"{name}/1", epoch, removed=True)
    await asyncio.wait_for(running, 30)
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 engines are ready"


async def test_a_number_that_autoscaling_replaces_is_an_error(pool: RequestPool, url: str) -> None:
    running = asyncio.create_task(run(url, "2"))
    while (await pool.engines(name := "test_a_number_that_autoscaling_replaces_is_an_error", 1)).wanted < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await pool.scale(name, 1)
    with pytest.raises(OrcaError, match="2 engines were asked for, and the cluster is to have 1"):
        await asyncio.wait_for(running, 30)


async def test_it_need_not_wait(pool: RequestPool, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    await run(url, "5", "--no-wait")
    assert capsys.readouterr().out == ""
    assert (await pool.overview()).wanted["test_it_need_not_wait"] == 5


async def test_a_seat_without_an_owner_in_another_shard_is_not_waited_for(
    pool: RequestPool, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list of shards has changed, and with it the shard of seat 1."""
    name = "test_a_seat_without_an_owner_in_another_shard_is_not_waited_for"
    other = RequestPool(url, f"{pool.name}.1")
    await other.engines(name, 2)
    epochs = [await take(pool, f"{name}/1"), await take(other, f"{name}/0"), await take(other, f"{name}/1")]
    await pool.release(f"{name}/1", epochs[0])
    await other.release(f"{name}/0", epochs[1])
    await asyncio.wait_for(run(url, "2", "--cluster", name), 30)
    assert capsys.readouterr().out.splitlines() == ["2 of 2 engines are ready"]
    await other.release(f"{name}/1", epochs[2])
    await other.close()


async def test_of_several_clusters_one_has_to_be_named(pool: RequestPool, url: str) -> None:
    await pool.engines("another", 1)
    epoch = await take(pool, "another/0")
    with pytest.raises(UsageError, match=r"several clusters: another .*--cluster another"):
        await run(url, "2")
    await run(url, "2", "--no-wait", "--cluster", "ano")
    assert (await pool.overview()).wanted["another"] == 2
    await pool.release("another/0", epoch)


async def test_a_server_without_a_cluster_is_an_error(url: str) -> None:
    with pytest.raises(OrcaError, match="no cluster has a scheduler"):
        await run(url)


async def test_all_shards_belong_to_one_cluster(
    pool: RequestPool, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list of shards is given, or is in the file that the running server has written."""
    cluster, shards = "test_all_shards_belong_to_one_cluster", f"0={url} 1={url}"
    second = RequestPool(url, f"test.{LAYOUT}.null.1")
    await second.engines(cluster, 2)
    await pool.scale(cluster, 2)
    epoch = await take(second, f"{cluster}/1")
    await run(shards)
    given = capsys.readouterr().out.splitlines()
    assert given[0].endswith("2 of 2 engines are ready")
    with pytest.raises(UsageError, match="each of its 2 pools needs an engine, so N cannot be 1"):
        await run(shards, "1")
    (tmp_path / "redis-url").write_text(shards)
    monkeypatch.setattr(engines, "running_servers", lambda _: {tmp_path: ""})
    await asyncio.to_thread(engines.run, [])
    assert capsys.readouterr().out.splitlines() == given
    away = f"unix://{tmp_path}/away"
    await run(f"0={url} 1={away}")
    out, err = capsys.readouterr()
    assert out.splitlines() == given
    assert err.startswith(f"{away}: the pool's server does not answer")
    assert err.count("\n") == 1
    with pytest.raises(PoolUnavailable):  # a number of engines is written to all shards
        await run(f"0={url} 1={away}", "3")
    assert (await pool.overview()).wanted[cluster] == 2
    await second.release(f"{cluster}/1", epoch)
    await second.close()


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_wrong_number_is_named(
    number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["orca", "engines", number])
    with pytest.raises(SystemExit) as end:
        orca.main()
    assert end.value.code == 2
    assert number in capsys.readouterr().err


def test_without_a_server_the_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCA_DATA_DIR", str(tmp_path))
    with pytest.raises(UsageError, match=r"no server runs on .*--redis-url or ORCA_REDIS_URL"):
        engines.run([])
