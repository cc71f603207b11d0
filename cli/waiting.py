"""Which pools on a data folder hold unfinished requests while no server runs them, and the commands that serve them."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from cli.place import FILES, owner_of
from services.errors import OrcaError
from services.pool.connection import Connection
from services.pool.discovery import pools_at
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from services.pool.server.users import in_use
from services.settings.models import OWN, TAG
from services.settings.settings import NAMES, SECRETS, Settings


def command_of(settings: Settings) -> str:
    """The command that starts a server with these settings; secrets are left out."""
    own: frozenset[str] = OWN if settings.models else frozenset()
    values = {"models" if own else "model": _served(settings), "port": settings.port} | {
        name: value
        for name, value in settings
        if name in settings.model_fields_set and name in NAMES and name not in SECRETS | own | {"models"}
    }
    words = ["orca", "serve", *(word for name, value in values.items() for word in _flag(name, value))]
    return shlex.join(words) + "  # and its API keys" * bool(settings.tenants or settings.operator_api_key)


def _served(settings: Settings) -> str | list[str]:
    """The model, or an entry with what is not a default for each of several."""
    defaults = Settings().model_dump(mode="json")
    changed = [
        {name: value for name, value in entry.items() if name != TAG and value != defaults[name]}
        for entry in settings.models
    ]
    return [
        json.dumps({"model": entry["model"]} | own) for entry, own in zip(settings.models, changed, strict=True)
    ] or settings.model


def _flag(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, (list, tuple)):
        return [f"--{flag}", *map(str, value)] if value else []
    return [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]


async def remember_command(url: str, pool: str, command: str) -> None:
    """Keep in the pool how it is served."""
    server = Connection(url)
    try:
        await server.command("SET", _command_key(pool), command)
    finally:
        await server.close()


async def waiting(data_dir: Path, own: Path, url: str, pools: Collection[str]) -> AsyncIterator[str]:
    """A line for each pool on `data_dir` that holds unfinished requests or batches and that no server runs. The server
    of the folder `own` answers at `url` and runs `pools`."""
    async for line in _of_server(url, f"in {own}", pools):
        yield line
    for folder in _unserved(data_dir, own):
        port = (owner_of(folder) if folder == data_dir else folder.name).removeprefix("port-")
        server = PoolServer(choose_server(), folder)
        try:
            async for line in _of_server(await server.start(), f"of port {port}"):
                yield line
        except (OrcaError, OSError) as error:  # this server starts all the same
            yield f"the pool of port {port}, in {folder}, cannot be read: {error}"
        finally:
            await server.stop()
        if batches := _open_batches(folder):
            yield f"{batches} unfinished batches of port {port} wait: orca serve --port {port} --data-dir {data_dir}"


def _unserved(data_dir: Path, own: Path) -> list[Path]:
    """The folders with a pool that no server uses."""
    folders = [folder for folder in (data_dir, *sorted(data_dir.glob("port-*"))) if folder != own]
    stored = [f for f in folders if (f / "appendonlydir").exists() or (f / "appendonly.aof").exists()]
    return [folder for folder in stored if not in_use(folder)]


def _open_batches(folder: Path) -> int:
    return len(list((folder / FILES / "open").glob("batch_*")))


async def _of_server(url: str, where: str, running: Collection[str] = ()) -> AsyncIterator[str]:
    server = Connection(url)
    try:
        async for pool in pools_at(url):
            if pool.name in running:
                continue
            view = await pool.overview()
            if unfinished := view.waiting + view.running:
                model = view.figures.model if view.figures else "MODEL"
                command = await server.command("GET", _command_key(pool.name))
                served_by = command.decode() if command else f"orca serve, as before, with the model {model}"
                yield f"{unfinished} requests wait {where}, in a pool that no server runs; to serve them: {served_by}"
    finally:
        await server.close()


def _command_key(pool: str) -> str:
    return f"orca:{{{pool}}}:command"
