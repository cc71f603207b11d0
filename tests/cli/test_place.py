"""Each server on a data folder has its own pool, files and batches; pools that nobody serves are named."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import redis.asyncio as redis

from cli.arguments import parse_serve
from cli.place import Place
from cli.waiting import command_of, remember_command, waiting
from services.errors import SettingsError
from services.messages import NewSequence, Submission
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from services.pool.shards import parse_shards
from services.requests import SamplingParams
from services.settings.settings import Settings
from services.settings.sources import from_values

POOL = "default.3.0123456789ab"
REMOTE = "redis://127.0.0.1:1"


def place(folder: Path, port: int = 8000, **values: object) -> Place:
    return Place.take(from_values({"data_dir": folder, "port": port, **values}))


def test_the_first_port_has_what_an_earlier_version_left_and_others_their_own(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").mkdir()
    first, second = place(tmp_path), place(tmp_path, 8001)
    assert first == Place(tmp_path, tmp_path / "files")
    assert second == Place(tmp_path / "port-8001", tmp_path / "port-8001/files")
    assert (place(tmp_path), place(tmp_path, 8001)) == (first, second)  # at each start


async def test_a_folder_that_an_earlier_version_serves_is_left_to_it(tmp_path: Path) -> None:
    server = PoolServer(choose_server(), tmp_path)
    await server.join()
    assert place(tmp_path, 8001).pool == tmp_path / "port-8001"
    await server.stop()
    assert place(tmp_path).pool == tmp_path


def test_servers_share_a_files_folder_only_within_one_pool(tmp_path: Path) -> None:
    files = str(tmp_path / "files")
    folders = [
        place(tmp_path / str(at), **values, files_dir=files).files
        for at, values in enumerate(
            [{"redis_url": REMOTE}, {"redis_url": REMOTE, "port": 8001}, {"redis_url": REMOTE, "pool": "b"}, {}]
        )
    ]
    assert folders[0] == folders[1] == tmp_path / "files"
    assert len(set(folders)) == 3


@pytest.mark.parametrize("name", ["data_dir", "files_dir"])
@pytest.mark.parametrize("wrong", ["a file", "below a file", "too long", "in /proc"])
def test_a_folder_that_cannot_be_used_is_named_at_the_start(tmp_path: Path, name: str, wrong: str) -> None:
    (tmp_path / "file").touch()
    folder = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file/x",
        "too long": tmp_path / ("x" * 300),
        "in /proc": Path("/proc/x"),
    }[wrong]
    with pytest.raises(SettingsError, match=f"{name}='{folder}.*name a folder that can be written"):
        Place.take(from_values({"data_dir": tmp_path / "data", name: str(folder)}))


def test_paths_of_users_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = from_values({"data_dir": "~/data", "files_dir": "~/files", "cache_dir": "~/cache"})
    assert (settings.data_dir, settings.files_dir) == (tmp_path / "data", str(tmp_path / "files"))
    assert settings.cache_dir == tmp_path / "cache"
    with pytest.raises(Exception, match="NUL"):
        from_values({"data_dir": "a\0b"})


@pytest.mark.parametrize(
    "name", ["my data", "a#b?c", "100%25", 'it\'s "x"', "ümläut-語", "new\nline", "back\\slash", "x" * 90]
)
async def test_any_name_of_a_data_folder_works(tmp_path: Path, name: str) -> None:
    server = PoolServer(choose_server(), tmp_path / name)
    url = await server.start()
    try:
        ((_, parsed),) = [(shard.number, shard.url) for shard in parse_shards(url)]
        async with redis.from_url(parsed) as client:
            await client.set("a", 1)
            assert (await client.config_get("dir"))["dir"] == str(tmp_path / name)
    finally:
        await server.stop()


async def test_pools_that_nobody_serves_are_named_with_the_command(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, port=8001, model="a model", max_model_len=128, api_key=("secret",))
    for folder, command in ((tmp_path, ""), (tmp_path / "port-8001", command_of(settings))):
        server = PoolServer(choose_server(), folder)
        url = await server.start()
        pool = RequestPool(url, POOL)
        sequences = [NewSequence("r/0", [1, 2], SamplingParams(4))]
        await pool.submit(Submission(request="r", gateway="g", sequences=sequences, background=True))
        if command:
            await remember_command(url, POOL, command)
        await pool.close()
        await server.stop()
    place(tmp_path, 8000)

    server = PoolServer(choose_server(), place(tmp_path, 8002).pool)
    url = await server.start()
    lines = [line async for line in waiting(tmp_path, server.data_dir, url, "own")]
    await server.stop()
    assert len(lines) == 2
    assert lines[0].startswith("1 requests wait of port 8000")
    assert "of port 8001" in lines[1]
    assert "orca serve --model 'a model' --port 8001" in lines[1]
    assert "--max-model-len 128" in lines[1]
    assert "secret" not in lines[1]

    server = PoolServer(choose_server(), tmp_path)  # its own pool is served, one of another model in it is not
    url = await server.start()
    assert len([line async for line in waiting(tmp_path, tmp_path, url, POOL)]) == 1
    assert len([line async for line in waiting(tmp_path, tmp_path, url, "own")]) == 2
    await server.stop()


async def test_a_pool_that_cannot_be_read_is_named_and_does_not_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "port-8001/appendonlydir").mkdir(parents=True)
    (tmp_path / "port-8001/appendonlydir/appendonly.aof.manifest").write_text("no manifest")
    server = PoolServer(choose_server(), place(tmp_path).pool)
    url = await server.start()
    lines = [line async for line in waiting(tmp_path, tmp_path, url, "own")]
    await server.stop()
    assert len(lines) == 1
    assert lines[0].startswith("the pool of port 8001, in ")


def test_the_command_of_a_server_has_no_secret_and_no_tag() -> None:
    command = command_of(Settings(models=["a", {"model": "b", "engines": 2}], operator_api_key="secret"))
    entries = """'{"model": "a"}' '{"model": "b", "engines": 2}'"""
    assert command == f"orca serve --models {entries} --port 8000  # and its API keys"
    assert parse_serve(shlex.split(command, comments=True)[2:]).each[1].engines == 2
