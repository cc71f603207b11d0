"""The listener of `--demo` kills the named process of its own cluster, and only for the page of its own server."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from actors.cluster.environment import mark_of
from cli import demo as demo_module
from cli.demo import Demo, metrics_of

ORIGIN = "http://127.0.0.1:8000"


class Cluster:
    """A folder with real processes, the metrics that name them, and what the demo says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = {name: self._start(folder) for name in ("engine", "scheduler")}
        self.stranger = self._start(folder / "another")
        self.pids = {name: [process.pid] for name, process in self.processes.items()}
        self.said: list[str] = []

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        variable, _, value = mark_of(folder).partition("=")
        return subprocess.Popen(["sleep", "60"], env=os.environ | {variable: value})

    async def metrics(self) -> str:
        lines = [
            f'orca:{name}_pid{{engine="{i}"}} {pid}.0' for name, pids in self.pids.items() for i, pid in enumerate(pids)
        ]
        return "\n".join([*lines, 'orca:engine_pid{engine="9"} 0.0', ""])

    def alive(self) -> set[str]:
        return {name for name, process in self.processes.items() if process.poll() is None}

    def end(self) -> None:
        for process in (*self.processes.values(), self.stranger):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()


class Page:
    """A page that was opened with the printed URL, or one that only knows the port."""

    def __init__(self, fragment: str, client: httpx.AsyncClient) -> None:
        name, _, rest = fragment.partition("=")
        assert name == "demo"
        self.port, _, self.token = rest.partition(".")
        self.headers = {"Origin": ORIGIN, "Authorization": f"Bearer {self.token}"}
        self._client = client

    async def send(self, body: Any = None, method: str = "POST", **headers: str | bytes) -> httpx.Response:
        sent = {name: value for name, value in (self.headers | headers).items() if value}
        content = {"json": body} if not isinstance(body, bytes) else {"content": body}
        return await self._client.request(method, f"http://127.0.0.1:{self.port}/", headers=sent, **content)


@pytest.fixture
async def page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    monkeypatch.setattr(demo_module, "PAUSE", 0.0)
    demo = Demo([ORIGIN], lambda: cluster.folder, cluster.metrics, cluster.said.append)
    async with httpx.AsyncClient() as client:
        yield Page(await demo.start(), client)
    await demo.stop()


@pytest.mark.parametrize("what", ["engine", "scheduler"])
async def test_the_named_process_is_killed(cluster: Cluster, page: Page, what: str) -> None:
    answer = await page.send({"kill": what})
    pid = cluster.processes[what].pid
    assert (answer.status_code, answer.json()) == (200, {"killed": what, "pid": pid})
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert cluster.processes[what].wait(10) == -signal.SIGKILL
    assert cluster.alive() == {"engine", "scheduler"} - {what}
    assert cluster.said == [f"demo: killing the {what}, process {pid}"]
    again = await page.send({"kill": what})
    assert (again.status_code, again.json()) == (503, {"error": f"no {what} is known"})


async def test_a_process_of_another_cluster_is_not_killed(cluster: Cluster, page: Page) -> None:
    cluster.pids["engine"] = [cluster.stranger.pid, os.getpid(), 1]
    assert (await page.send({"kill": "engine"})).status_code == 503
    assert cluster.stranger.poll() is None
    cluster.pids["engine"].append(cluster.processes["engine"].pid)
    assert (await page.send({"kill": "engine"})).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": b"Bearer \xff"}, 401),
        ({"Origin": ""}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:8001"}, 403),
        ({"Origin": "https://127.0.0.1:8000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8000"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
    ],
)
async def test_others_kill_nothing(cluster: Cluster, page: Page, headers: dict[str, str | bytes], status: int) -> None:
    answer = await page.send({"kill": "engine"}, **headers)
    assert answer.status_code == status
    assert ("Access-Control-Allow-Origin" in answer.headers) == (status != 403)
    assert page.token not in answer.text
    assert cluster.alive() == {"engine", "scheduler"}


@pytest.mark.parametrize(
    "body", [{"kill": "gateway"}, {"kill": ["engine"]}, {"kill": "engine", "pid": 1}, {}, [], b"", b"{", b"[" * 1000]
)
async def test_other_bodies_kill_nothing(cluster: Cluster, page: Page, body: Any) -> None:
    assert (await page.send(body)).status_code == 400
    assert cluster.alive() == {"engine", "scheduler"}


async def test_a_long_body_and_other_methods_are_refused(cluster: Cluster, page: Page) -> None:
    assert (await page.send(b" " * 2000)).status_code == 413
    assert (await page.send(method="GET")).status_code == 405
    asked = await page.send(method="OPTIONS", Authorization="")
    assert asked.status_code == 200
    assert asked.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
    assert (await page.send(method="OPTIONS", Origin="http://evil.example")).status_code == 403
    assert cluster.alive() == {"engine", "scheduler"}


async def test_kills_are_bounded_in_rate(cluster: Cluster, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "PAUSE", 1000.0)
    assert (await page.send({"kill": "engine"})).status_code == 200
    assert (await page.send({"kill": "scheduler"})).status_code == 429
    assert cluster.processes["engine"].wait(10) == -signal.SIGKILL
    assert cluster.alive() == {"scheduler"}


async def test_nothing_is_killed_while_the_metrics_cannot_be_read(cluster: Cluster) -> None:
    async def unavailable(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the pool is unavailable"}}, status=503)

    app = web.Application()
    app.router.add_get("/metrics", unavailable)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    read = metrics_of(f"http://127.0.0.1:{runner.addresses[0][1]}")
    demo = Demo([ORIGIN], lambda: cluster.folder, read, cluster.said.append)
    try:
        async with httpx.AsyncClient() as client:
            reply = await Page(await demo.start(), client).send({"kill": "engine"})
        assert (reply.status_code, reply.json()) == (503, {"error": "no engine is known"})
        assert reply.headers["Access-Control-Allow-Origin"] == ORIGIN
    finally:
        await demo.stop()
        await runner.cleanup()
    assert cluster.alive() == {"engine", "scheduler"}


async def test_each_start_has_a_token_of_its_own(cluster: Cluster, page: Page) -> None:
    other = Demo([ORIGIN], lambda: cluster.folder, cluster.metrics, cluster.said.append)
    try:
        fragment = await other.start()
    finally:
        await other.stop()
    assert fragment.partition(".")[2] != page.token
    assert len(page.token) >= 40
