"""`orca serve`: the whole server on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time

import httpx

from actors.environment import prepared_environment
from actors.leftovers import end_processes_of
from services.config import Settings, parse
from services.errors import OrcaError, SettingsError
from services.models import resolve
from services.pool.binaries import choose_server
from services.pool.server import PoolServer

READY_TIMEOUT = 900.0  # seconds, for models that load slowly


def run(arguments: list[str]) -> None:
    settings = parse(arguments, "orca serve")
    with prepared_environment() as folder:
        try:
            asyncio.run(_serve(settings))
        finally:
            end_processes_of(folder)


class Progress:
    """Prints what is being done, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:5.1f} s] {text}", flush=True)


async def _serve(settings: Settings) -> None:
    say = Progress()
    stopping = asyncio.Event()

    def stop() -> None:
        if not stopping.is_set():
            say("stopping")
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    _check_port(settings)
    await _run_until(stopping, settings, say)


async def _run_until(stopping: asyncio.Event, settings: Settings, say: Progress) -> None:
    from actors import cluster  # ray: imported after the environment was prepared

    await asyncio.to_thread(resolve, settings.model, settings.cache_dir, say)
    server = None
    try:
        if not settings.redis_url:
            server = PoolServer(choose_server(), settings.data_dir, settings.durability)
            say(f"starting the pool's server, {server.binary.path}")
            settings = settings.model_copy(update={"redis_url": await server.start(), "durability": "everysec"})
        say("starting Ray and loading the model")
        await asyncio.to_thread(cluster.start, settings)
        say("starting gateway and scheduler")
        await asyncio.to_thread(cluster.deploy, settings)
        await _until_ready(settings, stopping)
        if not stopping.is_set():
            say(_ready_line(settings))
        await stopping.wait()
    finally:
        await asyncio.to_thread(cluster.stop, settings)
        if server is not None:
            await server.stop()
    say("stopped")


def _check_port(settings: Settings) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise SettingsError(f"port={settings.port}, host={settings.host}: {error.strerror}") from error


async def _until_ready(settings: Settings, stopping: asyncio.Event) -> None:
    end = time.monotonic() + READY_TIMEOUT
    async with httpx.AsyncClient(base_url=_url(settings), timeout=5) as client:
        while not stopping.is_set():
            try:
                if (await client.get("/ready")).is_success:
                    return
            except httpx.HTTPError:
                pass  # not listening yet
            if time.monotonic() > end:
                raise OrcaError(f"not ready after {READY_TIMEOUT:.0f} s; Ray's logs are in its session folder")
            await asyncio.sleep(0.1)


def _url(settings: Settings) -> str:
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0") else settings.host
    return f"http://{host}:{settings.port}"


def _ready_line(settings: Settings) -> str:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    return (
        f"ready at {_url(settings)}  try: curl {_url(settings)}/v1/chat/completions "
        f"-H 'content-type: application/json' -d '{json.dumps(body)}'"
    )
