"""Requests that would wait too long are refused at once; those that nobody waits for, or that run already, are not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from clients import show_an_engine
from pump import submission
from stack import Stack

from gateway.drain import Drain
from services.config import Settings
from services.overview import Overview
from services.requests import BATCH_CLASS

BODY = {"prompt": "hello", "max_tokens": 3}
RATE = 2.0


@pytest.fixture(scope="module")
def busy(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    """A gateway that measured `RATE`, before a pool in which 30 sequences wait and whose engine takes none."""
    settings = Settings(max_queue_wait=10.0)
    with Stack(redis_url, f"busy-{time.monotonic_ns()}", tiny_folder, settings, engine=False) as stack:
        stack.call(show_an_engine(stack))
        stack.call(stack.pool.submit(submission("before", 30)))
        heartbeat = stack.app.state.gateway.heartbeat
        measured = Drain()
        for second in range(20):
            counters = {"vllm:request_success|stop": RATE * second}
            measured.observe(Overview(30, 1, 0, 0, None, [], counters, 1), float(second))
        measured.observe = lambda overview, now: None  # type: ignore[method-assign]
        heartbeat.drain = measured
        stack.call(heartbeat.beat())
        yield stack


def test_it_is_refused_with_the_time_until_there_is_room(busy: Stack) -> None:
    refused = httpx.post(busy.url + "/v1/completions", json=BODY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_too_long"
    assert "max_queue_wait is 10 s" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "5"  # 30 wait, at 2 in a second, and 20 may


def test_who_comes_back_to_a_request_that_the_pool_has_is_let_in(busy: Stack) -> None:
    headers = {"Idempotency-Key": "again", "Orca-Resumable": "true"}
    assert httpx.post(busy.url + "/v1/completions", json=BODY, headers=headers).status_code == 429
    heartbeat = busy.app.state.gateway.heartbeat
    measured, heartbeat.drain = heartbeat.drain, Drain()
    try:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(busy.url + "/v1/completions", json=BODY, headers=headers, timeout=0.5)
    finally:
        heartbeat.drain = measured
    with pytest.raises(httpx.ReadTimeout):  # it waits, as it did
        httpx.post(busy.url + "/v1/completions", json=BODY, headers=headers, timeout=0.5)


def test_background_requests_may_wait(busy: Stack) -> None:
    body = {"input": "hello", "background": True, "store": True, "max_output_tokens": 16}
    assert httpx.post(busy.url + "/v1/responses", json=body).json()["status"] == "queued"


def test_lines_of_batches_are_not_waited_for(busy: Stack) -> None:
    gateway = busy.app.state.gateway
    before = gateway.heartbeat.ahead()
    busy.call(busy.pool.submit(submission("lines", 50, priority=BATCH_CLASS)))
    busy.call(gateway.heartbeat.beat())
    assert gateway.heartbeat.ahead() <= before + 1  # the background request
    assert busy.call(busy.pool.overview()).lines == 50
