"""Streams in the middle of a JSON document and of a call of a tool, while engine, scheduler and gateways are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import jsonschema
import pytest

from load.chaos.site import GATEWAY
from load.server import OrcaServer
from services.client.sse import Event, Events

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300)]

PATH = "/v1/chat/completions"
FIRST, STEP = 12, 25  # tokens of each stream before the first fault, and between faults
PATIENCE = 60.0  # seconds
CITY = {"type": "string", "enum": ["Paris", "Rome", "Oslo", "Lima"]}
DAY = {
    "type": "object",
    "properties": {"city": CITY, "celsius": {"type": "integer", "minimum": -50, "maximum": 50}},
    "required": ["city", "celsius"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "array", "items": DAY, "minItems": 9, "maxItems": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
COMMON = {
    "messages": [{"role": "user", "content": "What will the weather be?"}],
    "temperature": 1,
    "seed": 7,
    "max_tokens": 400,
    "stream": True,
    "return_token_ids": True,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "report", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "report"}}
BODIES: dict[str, dict[str, Any]] = {
    "document": COMMON | {"response_format": FORMAT},
    "call": COMMON | {"tools": [TOOL], "tool_choice": NAMED, "parallel_tool_calls": False},
}


@dataclass
class Said:
    """What events of a stream say, however its tokens are grouped into events."""

    tokens: list[int] = field(default_factory=list)
    content: str = ""
    called: list[str] = field(default_factory=list)  # names
    arguments: str = ""
    end: str = ""

    def add(self, event: Event) -> None:
        (choice,) = json.loads(event.data)["choices"]
        self.tokens += choice.get("token_ids") or []
        self.content += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls") or ():
            assert piece["index"] == 0
            self.called += [piece["function"]["name"]] if piece.get("id") else []
            self.arguments += piece["function"].get("arguments") or ""
        self.end += choice["finish_reason"] or ""

    def check(self, kind: str) -> None:
        """Raises unless it is a whole valid answer of this kind."""
        jsonschema.validate(json.loads(self.content or self.arguments), SCHEMA)
        if kind == "call":
            assert (self.content, self.called, self.end) == ("", ["report"], "tool_calls")
        else:
            assert (self.arguments, self.called, self.end) == ("", [], "stop")


class Stream:
    """A stream that resumes after the last event when its connection breaks, until its end."""

    def __init__(self, url: str, kind: str, key: str) -> None:
        self._url, self._body, self._key = url, BODIES[kind], key
        self.events: list[Event] = []
        self.said = Said()
        self._arrived = threading.Condition()
        self._over = False

    def run(self) -> None:
        end = time.monotonic() + PATIENCE
        try:
            with httpx.Client(base_url=self._url, timeout=PATIENCE) as http:
                while not self._over:
                    assert time.monotonic() < end
                    try:
                        self._read(http)
                    except httpx.TransportError:
                        time.sleep(0.05)  # until the gateway is back
        finally:
            with self._arrived:
                self._over = True
                self._arrived.notify_all()

    def _read(self, http: httpx.Client) -> None:
        headers = {"Idempotency-Key": self._key}
        if self.events:
            headers["Last-Event-ID"] = self.events[-1].id
        with http.stream("POST", PATH, json=self._body, headers=headers) as response:
            if response.status_code == 503:
                time.sleep(0.05)
                return
            assert response.status_code == 200, response.read()
            for event in read(response):
                with self._arrived:
                    if event.data == "[DONE]":
                        self._over = True
                        return
                    self.said.add(event)
                    self.events.append(event)
                    self._arrived.notify_all()

    def until(self, tokens: int) -> None:
        """Wait until so many tokens have come; raises if the stream ended before."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._over or len(self.said.tokens) >= tokens, PATIENCE)
        assert not self._over, self.said


def read(response: httpx.Response) -> Iterator[Event]:
    parser = Events()
    for line in response.iter_lines():
        if event := parser.feed(line.encode()):
            yield event


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcaServer]:
    with OrcaServer(tmp_path_factory.mktemp("structured"), "--dtype", "float32", "--gateways", "2") as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(server: OrcaServer) -> dict[str, Stream]:
    streams = {kind: Stream(server.url, kind, f"undisturbed {kind}") for kind in BODIES}
    for kind, stream in streams.items():
        stream.run()
        stream.said.check(kind)
    return streams


def test_documents_and_calls_go_on_when_engine_scheduler_and_gateways_die(
    server: OrcaServer, undisturbed: dict[str, Stream]
) -> None:
    server.until_spares()
    streams = {kind: Stream(server.url, kind, f"disturbed {kind}") for kind in BODIES}
    with ThreadPoolExecutor(len(streams)) as threads:
        running = [threads.submit(stream.run) for stream in streams.values()]
        for number, victims in enumerate((engine, scheduler, gateways)):
            for stream in streams.values():
                stream.until(FIRST + STEP * number)
            pids = victims(server)
            assert pids
            assert all(pids)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        for run in running:
            run.result()
    for kind, stream in streams.items():
        stream.said.check(kind)
        assert stream.said == undisturbed[kind].said


def engine(server: OrcaServer) -> list[int]:
    return [server.engine()]


def scheduler(server: OrcaServer) -> list[int]:
    return [server.scheduler()]


def gateways(server: OrcaServer) -> list[int]:
    return server.pids(GATEWAY)
