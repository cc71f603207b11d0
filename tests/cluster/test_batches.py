"""A batch while every process that serves it dies: each line is answered once, as by an undisturbed server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from load.chaos.faults import FAULTS
from load.chaos.site import NoTarget, Site
from load.server import OrcaServer
from load.workloads import BEGINNINGS

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(600)]

FLAGS = (
    "--dtype",
    "float32",
    "--gateways",
    "2",
    "--durability",
    "strict",
    "--drain-timeout",
    "1",
)
# lines end one after the other, so that faults hit a batch in progress
CONSTANTS = {"lease": 3.0, "lines_in_flight": 12}
LINES, TOKENS = 160, 32
PATIENCE = 240.0  # seconds
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    def start_again() -> None:
        site.server = OrcaServer(tmp_path, *FLAGS, port=site.server.port, **CONSTANTS)
        site.server.__enter__()

    async def no_poison() -> None:
        raise AssertionError("no test sends poison")

    server = OrcaServer(tmp_path, *FLAGS, **CONSTANTS)
    with contextlib.ExitStack() as stack:
        site = Site(server, start_again, no_poison, past_lease=3.0, outage=4.0)
        stack.callback(lambda: site.server.__exit__())
        server.__enter__()
        yield site


def content() -> bytes:
    """Greedy lines, lines with a seed, lines whose seed the server chooses, and an invalid line."""
    lines: list[dict[str, Any]] = []
    for number in range(LINES):
        body: dict[str, Any] = {"prompt": f"{number}. {BEGINNINGS[number % len(BEGINNINGS)]}", "max_tokens": TOKENS}
        body |= [{"temperature": 0}, {"seed": number}, {}][number % 3]
        if number == 7:
            body = {"prompt": "wrong", "max_tokens": -1}
        lines.append({"custom_id": f"line {number}", "method": "POST", "url": "/v1/completions", "body": body})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def ask(client: openai.OpenAI) -> Batch:
    file = client.files.create(file=("lines.jsonl", content()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


def look(client: openai.OpenAI, id: str) -> Batch | None:
    """The batch; None while the server does not answer."""
    with contextlib.suppress(openai.APIConnectionError, openai.InternalServerError, openai.NotFoundError):
        return client.batches.retrieve(id)
    return None


def until(client: openai.OpenAI, id: str, count: int) -> Batch:
    """The batch as soon as `count` lines are answered, or the batch has ended."""
    end = time.monotonic() + PATIENCE
    while True:
        batch = look(client, id)
        if batch and (batch.status in ENDED or (batch.request_counts and batch.request_counts.completed >= count)):
            return batch
        assert time.monotonic() < end, batch
        time.sleep(0.1)


def texts(client: openai.OpenAI, batch: Batch) -> dict[str, Any]:
    """The text or the status code of each line; fails if a line is answered twice."""
    found: dict[str, Any] = {}
    for id in (batch.output_file_id, batch.error_file_id):
        assert id is not None
        for line in client.files.content(id).text.splitlines():
            entry = json.loads(line)
            assert entry["custom_id"] not in found
            response = entry["response"]
            good = response["status_code"] == 200
            found[entry["custom_id"]] = response["body"]["choices"][0]["text"] if good else response["status_code"]
    return found


def inject(site: Site, name: str) -> None:
    """Inject a fault as soon as its target exists."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return asyncio.run(FAULTS[name].inject(site))
        except (NoTarget, httpx.HTTPError):
            assert time.monotonic() < end, f"no target for {name}"
            time.sleep(0.1)


def test_each_line_is_answered_once_whatever_dies(site: Site) -> None:
    with openai.OpenAI(base_url=site.server.url + "/v1", api_key="none", max_retries=5, timeout=10) as client:
        undisturbed = texts(client, until(client, ask(client).id, LINES + 1))
        assert len(undisturbed) == LINES
        assert undisturbed["line 7"] == 400
        batch = ask(client)
        faults = ["gateway", "engine", "scheduler", "gateway", "pool", "everything"]
        for place, name in enumerate(faults, 1):
            before = until(client, batch.id, place * LINES // (len(faults) + 2))
            assert before.status == "in_progress", f"it ended before the fault {name}"
            inject(site, name)
        batch = until(client, batch.id, LINES + 1)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": LINES, "completed": LINES - 1, "failed": 1}
        disturbed = texts(client, batch)
    assert disturbed.keys() == undisturbed.keys()
    chosen = {f"line {number}" for number in range(LINES) if number % 3 == 2}  # the seed depends on the id of the batch
    for id in undisturbed.keys() - chosen:
        assert disturbed[id] == undisturbed[id]
