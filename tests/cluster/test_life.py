"""Clients that disconnect and schedulers that are stopped leave nothing stuck. Deaths under load: `test_faults.py`."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator

import httpx
import pytest
from waiting import wait_until

from load.server import OrcaServer

pytestmark = pytest.mark.cluster

LONG = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}
ENDLESS = LONG | {"temperature": 1, "max_tokens": 2000}
SEEDED = LONG | {"return_token_ids": True, "temperature": 1, "seed": 7}
SCHEDULER = "ray::ServeReplica:orca:scheduler"


PATIENCE = 60.0  # seconds


def stream(server: OrcaServer, body: dict[str, object], at_first: Callable[[], None] = lambda: None) -> list[int]:
    """Token ids of a whole stream; `at_first` is called when the first have arrived."""
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=100) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        at_first()
        return tokens(itertools.chain([first], lines))


def tokens(lines: Iterator[str]) -> list[int]:
    """Token ids of a stream, up to its `[DONE]`."""
    found: list[int] = []
    for line in lines:
        if line.startswith("data: "):
            if line == "data: [DONE]":
                return found
            found += [t for c in json.loads(line[6:])["choices"] for t in c["token_ids"]]
    raise AssertionError(f"the stream ended after {len(found)} tokens without [DONE]")


def test_a_client_that_disconnects_frees_its_place(server: OrcaServer) -> None:
    cancelled = "vllm:request_success_total"
    before = server.metrics().get(cancelled, 0)
    with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS, timeout=PATIENCE) as response:
        lines = response.iter_lines()  # httpx closes the response when its iterator is deleted
        next(lines)
        wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 1)
    wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 0)
    assert server.metrics()[cancelled] == before + 1


def test_a_new_scheduler_computes_no_prompt_again(server: OrcaServer) -> None:
    prompt = [*range(300, 700)]
    body = SEEDED | {"prompt": prompt, "max_tokens": 150}
    server.until_spares()
    scheduler, computed = server.scheduler(), "vllm:iteration_tokens_total_sum"  # asked before: asking takes its time
    before = server.metrics()[computed]
    found = stream(server, body, lambda: os.kill(scheduler, signal.SIGKILL))
    assert server.scheduler() not in (0, scheduler)
    assert server.metrics()[computed] - before < 2 * len(prompt)
    assert stream(server, body) == found


@pytest.mark.chaos
def test_a_scheduler_that_is_stopped_is_killed_and_replaced(server: OrcaServer) -> None:
    body = SEEDED | {"max_tokens": 120}
    undisturbed = stream(server, body)
    server.until_spares()
    scheduler = server.scheduler()

    def stop() -> None:
        os.kill(scheduler, signal.SIGSTOP)
        wait_until(lambda: server.scheduler() not in (0, scheduler))

    assert stream(server, body, stop) == undisturbed
    assert scheduler not in server.pids(SCHEDULER)
    assert server.metrics()["orca:scheduler_stuck_total"] == 1
    server.until_spares()
