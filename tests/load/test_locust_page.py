"""Locust's web page: tests that its form starts, with shapes, and the rows of its table."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from load.server import free_port
from load.users.profile import arrivals, profile_of
from tests.load.locust_run import ROOT
from tests.load.test_locustfile import CHATS, whole
from tests.services.client.sse_server import Reply, SseServer

REPORT = "requests in "  # begins the report at the end of a test
RATE, SECONDS, STAGES = 30.0, 3, 2


@pytest.fixture(scope="module")
def server() -> Iterator[SseServer]:
    with SseServer() as server:
        server.reply = lambda asked: Reply(whole(asked.body))
        yield server


@dataclass(frozen=True)
class Page:
    http: httpx.Client
    log: Path  # what Locust prints

    def run(self, requests: int, **form: Any) -> None:
        """Start a test with the values of the form, and wait for its report."""
        given = {"user_count": 5, "spawn_rate": 100, "user_classes": "ChatUser", "max_tokens": 4} | form
        reports = self.log.read_text().count(REPORT)
        data = {name: str(value) for name, value in (given | {"requests": requests}).items()}
        answer = self.http.post("/swarm", data=data).json()
        assert answer["success"], answer
        self.wait(lambda: self.log.read_text().count(REPORT) > reports)

    def rows(self, requests: int) -> dict[str, int]:
        """The table after a test with so many requests, which the page reads every two seconds: the count of each
        row."""
        found: dict[str, int] = {}

        def read() -> bool:
            table = self.http.get("/stats/requests").json()["stats"]
            found.clear()
            found.update({f"{row['method'] or ''} {row['name']}".strip(): row["num_requests"] for row in table})
            return found["Aggregated"] == requests

        self.wait(read)
        return found

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def page(server: SseServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with serve_page(server, tmp_path_factory.mktemp("locust")) as page:
        yield page


@contextlib.contextmanager
def serve_page(server: SseServer, folder: Path, *options: str) -> Iterator[Page]:
    port = str(free_port())
    command = [sys.executable, "-m", "locust", "-f", "load/locustfile.py", "--class-picker", "--host", server.url]
    command += ["--web-host", "127.0.0.1", "--web-port", port]
    command += ["--stop-timeout", "20", *options]  # a request that is under way at the end would have no sample
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=output, stderr=output
        )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        page = Page(client, log)
        try:
            page.wait(lambda: _answers(client, process))
            yield page
        finally:
            process.terminate()
            process.wait(20)
    assert "Traceback" not in log.read_text()


def _answers(client: httpx.Client, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        return client.get("/").status_code == 200
    except httpx.TransportError:
        return False


def test_the_table_shows_the_goodput(page: Page) -> None:
    page.run(6, goodput="ttft:60000 e2el:60000")
    rows = page.rows(6)
    assert (rows[f"GOODPUT {CHATS}"], rows[f"POST {CHATS}"]) == (6, 6)
    page.run(7, goodput="e2el:0.001")
    rows = page.rows(7)
    assert (rows.get(f"GOODPUT {CHATS}"), rows[f"TTFT {CHATS}"]) == (None, 7)


def test_a_shape_of_the_form_sends_its_arrivals(page: Page, tmp_path: Path) -> None:
    """Each stage sends the requests that are due in it; the last one may be cut off by the end of the test."""
    samples = tmp_path / "samples.jsonl"
    open_loop = {"request_rate": RATE, "run_time": f"{SECONDS}s", "stages": STAGES, "user_count": 40, "seed": 3}
    page.run(0, shape_class="SpikeShape", samples=samples, **open_loop)
    sent = Counter(json.loads(line)["stage"] for line in samples.read_text().splitlines())
    profile = profile_of("spike", RATE, SECONDS, STAGES)
    due = Counter(profile.locate(at)[0] for at in arrivals(profile, 1.0, 3))
    last = len(profile.stages) - 1
    assert {stage: sent[stage] for stage in range(last)} == {stage: due[stage] for stage in range(last)}
    assert sent[last] <= due[last]
    assert due.total() > 20
