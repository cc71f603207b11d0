"""`orca serve`: the whole server on this machine, until Ctrl-C.

This process supervises two others: the pool's server, and the one that holds Ray. It is killed: both go on, and the
next `orca serve` on the port takes the pool over and replaces the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import time

from actors.connections import raise_file_limit, warning
from actors.leftovers import end_processes_of
from cli import hidden_arguments
from cli.port_claim import PortClaim
from cli.serve_flags import parse
from cli.server import own_url
from cli.supervisor import Supervisor
from services import exposure
from services.config import Settings
from services.errors import PoolDenied, PoolUnavailable, SettingsError
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer


def run(arguments: list[str]) -> None:
    shown = hidden_arguments.hide()
    settings = parse(arguments)
    exposure.check(settings)
    if shown:
        print(f"{', '.join(shown)}: hidden from ps, but perhaps in a shell's history; docs/security.md names files")
    with PortClaim(settings.data_dir, settings.port) as claim:
        asyncio.run(_serve(settings, claim))


class Progress:
    """Prints what is being done, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:5.1f} s] {text}", flush=True)


async def _serve(settings: Settings, claim: PortClaim) -> None:
    say = Progress()
    if claim.folder:
        say("ending the cluster that a killed orca serve left on this port")
        end_processes_of(claim.folder)
        shutil.rmtree(claim.folder, ignore_errors=True)
        claim.folder = None
    _check_port(settings)
    if few := warning(settings, raise_file_limit()):
        say(few)
    server = None
    if not settings.redis_url:
        server = PoolServer(choose_server(), settings.data_dir, settings.durability, max_bytes=settings.max_pool_bytes)
    keep = [await server.join()] if server else []
    supervisor = Supervisor(settings, claim, keep, lambda: _until_ready(settings), say)
    serving, signals = asyncio.create_task(_run(supervisor, settings, server, say)), _stop_signals()
    interrupt = asyncio.create_task(signals.get())
    try:
        await asyncio.wait({serving, interrupt}, return_when=asyncio.FIRST_COMPLETED)
        if interrupt.done():
            say("stopping; once more to stop at once")
            serving.cancel()
            await asyncio.wait({serving})
            await _drain(supervisor, signals)
    finally:
        supervisor.end()
        if server and not await server.stop():
            say("the pool's server stays: others use it")
    if not serving.cancelled():
        serving.result()
    say("stopped")


async def _run(supervisor: Supervisor, settings: Settings, server: PoolServer | None, say: Progress) -> None:
    from services.engine.native.build import NoKernels, compiled
    from services.models.pin import pin

    model = await asyncio.to_thread(pin, settings.model, settings.cache_dir, say)
    if settings.device != "cuda" and not settings.null_engine:
        with contextlib.suppress(NoKernels, OSError):  # the engine says so where it needs them
            await asyncio.to_thread(compiled, settings.cache_dir, say)
    url = settings.redis_url.get_secret_value()
    if server is not None:
        say(f"starting the pool's server, {server.binary.path}")
        url = await server.start()
    else:
        await _check_pool(url, say)
    say("starting Ray")
    await supervisor.run(url, model, _ready_line(settings))


async def _check_pool(url: str, say: Progress) -> None:
    """A server that is away is waited for later; one that refuses our password will not change its mind."""
    pool = RequestPool(url)
    try:
        await pool.connect()
    except PoolDenied as error:
        raise SettingsError(f"redis_url: {error}") from None
    except PoolUnavailable as error:
        say(f"waiting for the pool's server: {error}")
    finally:
        await pool.close()


def _stop_signals() -> asyncio.Queue[int]:
    """The signals that stop a server, as they come."""
    came: asyncio.Queue[int] = asyncio.Queue()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup's way
        numbers.append(signal.SIGHUP)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, came.put_nowait, number)
    return came


async def _drain(supervisor: Supervisor, signals: asyncio.Queue[int]) -> None:
    """Until the cluster has drained, or the next signal comes."""
    draining, hurry = asyncio.create_task(supervisor.stop()), asyncio.create_task(signals.get())
    await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurry):
        task.cancel()


def _check_port(settings: Settings) -> None:
    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise SettingsError(f"port={settings.port}, host={settings.host}: {error.strerror}") from error


async def _until_ready(settings: Settings) -> None:
    import httpx

    # it asks itself: the certificate is for the names by which others call it
    async with httpx.AsyncClient(base_url=own_url(settings), timeout=5, verify=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):  # not listening yet
                if (await client.get("/ready")).is_success:
                    return
            await asyncio.sleep(0.1)


def _ready_line(settings: Settings) -> str:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    key = '-H "authorization: Bearer $ORCA_API_KEY" ' if settings.tenants else ""
    return (
        f"ready at {own_url(settings)}  try: curl {own_url(settings)}/v1/chat/completions "
        f"{key}-H 'content-type: application/json' -d '{json.dumps(body)}'"
    )
