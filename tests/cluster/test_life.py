"""Clients that go, schedulers that die, servers that are stopped: nothing is stuck, nothing is left."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from load.server import OrcaServer

pytestmark = pytest.mark.cluster

LONG = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def kill(pids: list[int]) -> None:
    (pid,) = pids
    os.kill(pid, signal.SIGKILL)


def stream(server: OrcaServer, body: dict[str, object], at_first: Callable[[], None] = lambda: None) -> list[int]:
    """Token ids of a whole stream; `at_first` is called when the first have come."""
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=100) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        at_first()
        return tokens(itertools.chain([first], lines))


def tokens(lines: Iterator[str]) -> list[int]:
    """Token ids of a stream, to its `[DONE]`."""
    found: list[int] = []
    for line in lines:
        if line.startswith("data: "):
            if line == "data: [DONE]":
                return found
            found += [t for c in json.loads(line[6:])["choices"] for t in c["token_ids"]]
    raise AssertionError(f"the stream ended after {len(found)} tokens without [DONE]")


def test_a_client_that_goes_away_frees_its_place(server: OrcaServer) -> None:
    cancelled = "vllm:request_success_total"
    before = server.metrics().get(cancelled, 0)
    with httpx.stream("POST", server.url + "/v1/completions", json=LONG | {"max_tokens": 500}, timeout=30) as response:
        next(response.iter_lines())
        assert server.metrics()["vllm:num_requests_running"] == 1
    wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 0, 10)
    assert server.metrics()[cancelled] == before + 1


def test_a_stream_outlives_its_scheduler_and_the_engine_keeps_its_weights(server: OrcaServer) -> None:
    body = LONG | {"return_token_ids": True}
    undisturbed = stream(server, body)
    assert len(undisturbed) == 60
    engine, scheduler = server.pids("ray::EngineActor"), server.pids("ray::ServeReplica:orca:scheduler")
    assert stream(server, body, lambda: kill(scheduler)) == undisturbed
    assert server.pids("ray::EngineActor") == engine
    assert server.pids("ray::ServeReplica:orca:scheduler") != scheduler


def test_a_stream_outlives_its_engine(server: OrcaServer) -> None:
    body = LONG | {"return_token_ids": True, "temperature": 1, "seed": 7}
    undisturbed = stream(server, body)
    engine = server.pids("ray::EngineActor")
    assert stream(server, body, lambda: kill(engine)) == undisturbed
    assert server.pids("ray::EngineActor") != engine
    assert server.metrics()["orca:engine_losses_total"] == 1


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with OrcaServer(tmp_path, "--null-engine", "--engines", "2", "--policy", "request") as server:
        answer = httpx.post(server.url + "/v1/completions", json={"prompt": "a", "max_tokens": 5}, timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 5
        children = server.descendants()
        assert len(server.pids("ray::EngineActor")) == 2
        assert server.stop() == 0
    wait_until(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()], 10)


def test_a_port_in_use_is_named(server: OrcaServer, tmp_path: Path) -> None:
    second = OrcaServer(tmp_path, "--port", str(server.port))
    assert second.process.wait(60) == 1
    assert f"port={server.port}" in "".join(second.lines)
