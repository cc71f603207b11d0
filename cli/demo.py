"""The listener of `orca serve --demo`: the live page asks it to kill the engine or the scheduler of this server.

It runs in the supervisor, because the gateways know no processes, on a port of 127.0.0.1. A request is

    POST / HTTP/1.1
    Authorization: Bearer TOKEN
    Origin: http://127.0.0.1:8000

    {"kill": "engine"}

and is answered with `{"killed": "engine", "pid": 123}`. The token is made when `orca serve` starts and is valid until
it ends. It is printed as part of the page's URL, in the fragment, which browsers send to no server. `Origin` must be
the API's own and `Host` a loopback address, so that no page of another origin can use the port, whatever it knows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
from aiohttp import web

from actors.cluster.processes import processes_of
from cli.status import samples_of
from services.settings.addresses import is_loopback

ADDRESS = "127.0.0.1"
GAUGES = {"engine": "orca:engine_pid", "scheduler": "orca:scheduler_pid"}  # the metric with the process of each seat
LONGEST_BODY = 1024  # bytes
PAUSE = 1.0  # seconds between two kills

Metrics = Callable[[], Awaitable[str]]  # returns the text of `/metrics`; may raise httpx.HTTPError


class Demo:
    """Kills processes of one cluster for pages of the API's `origins`. `folder` returns the folder of the cluster,
    `metrics` its metrics; `say` prints a line for the user."""

    def __init__(
        self, origins: Iterable[str], folder: Callable[[], Path], metrics: Metrics, say: Callable[[str], None]
    ) -> None:
        self._origins = frozenset(origins)
        self._folder, self._metrics, self._say = folder, metrics, say
        self._token = secrets.token_urlsafe(32)
        self._next_at = 0.0  # when the next kill is allowed
        app = web.Application(client_max_size=LONGEST_BODY)
        app.router.add_route("*", "/", self._answer)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> str:
        """Listen; returns the fragment of the page's URL that has the port and the token."""
        await self._runner.setup()
        await web.TCPSite(self._runner, ADDRESS, 0).start()
        return f"demo={self._runner.addresses[0][1]}.{self._token}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        origin = request.headers.get("Origin", "")
        if not is_loopback(request.host.rpartition(":")[0]) or origin not in self._origins:
            return _json(403, error="only the page of this server may use this port")
        status, fields = await self._allowed(request)
        response = _json(status, **fields)
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Methods"] = "POST"
        response.headers["Access-Control-Allow-Headers"] = "authorization, content-type"
        response.headers["Vary"] = "Origin"
        return response

    async def _allowed(self, request: web.Request) -> tuple[int, dict[str, Any]]:
        """The status and the fields of the answer to a request of the API's own origin."""
        if request.method == "OPTIONS":  # a browser asks before it sends a header such as Authorization
            return 200, {}
        if request.method != "POST":
            return 405, {"error": "POST only"}
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode(errors="surrogateescape"), self._token.encode()):
            return 401, {"error": "another token than the one in the URL that orca serve printed"}
        what = _wanted(await request.read())
        if what is None:
            return 400, {"error": f'the body must be {{"kill": NAME}}, with one of the names {", ".join(GAUGES)}'}
        now = time.monotonic()
        if now < self._next_at:
            return 429, {"error": f"one kill in {PAUSE:.0f} s"}
        self._next_at = now + PAUSE
        pid = await self._kill(what)
        return (200, {"killed": what, "pid": pid}) if pid else (503, {"error": f"no {what} is known"})

    async def _kill(self, what: str) -> int:
        """Kill a process of the cluster. Returns its id; 0 if there is none."""
        try:
            metrics = await self._metrics()
        except httpx.HTTPError:  # no gateway answers, or the pool is away
            return 0
        for pid in (int(sample.value) for sample in samples_of(metrics, [GAUGES[what]]) if sample.value > 0):
            with contextlib.suppress(ProcessLookupError), _opened(pid) as process:
                # the process is opened before the check: its id cannot become another's between check and kill
                if pid in processes_of(self._folder()):
                    self._say(f"demo: killing the {what}, process {pid}")
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    return pid
        return 0


def metrics_of(url: str) -> Metrics:
    """What reads the metrics of the server at `url`, which is this machine's own."""

    async def read() -> str:
        async with httpx.AsyncClient(base_url=url, timeout=5, verify=False, trust_env=False) as client:
            return (await client.get("/metrics")).raise_for_status().text

    return read


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    """A file descriptor of the process. Raises ProcessLookupError if there is none."""
    number = os.pidfd_open(pid)
    try:
        yield number
    finally:
        os.close(number)


def _wanted(body: bytes) -> str | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return next((name for name in GAUGES if value == {"kill": name}), None)


def _json(status: int, **fields: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(fields), content_type="application/json")
