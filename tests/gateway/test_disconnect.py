"""The request of a client that disconnects is cancelled at once, streaming or not, unless it is resumable."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients import get, post, show_an_engine
from stack import Server, Stack
from waiting import wait_until

from services.settings.constants import Constants
from services.settings.settings import Settings

# takes longer than `wait_until` waits: 20 ms per token
LONG: dict[str, Any] = {"prompt": "SLOW", "max_tokens": 380}


def busy(stack: Stack) -> int:
    overview = stack.call(stack.pool.overview())
    return overview.running + overview.waiting


@pytest.mark.parametrize("half", [False, True], ids=["closed", "half-closed"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_is_cancelled(stack: Stack, stream: bool, half: bool) -> None:
    assert busy(stack) == 0
    connection = post(stack, LONG | {"stream": stream, "n": 2})
    wait_until(lambda: busy(stack) == 2)
    if stream:
        assert b"200 OK" in connection.recv(1000)
    if half:
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    wait_until(lambda: busy(stack) == 0)
    connection.close()


def test_a_client_that_disconnects_while_its_request_waits(stack: Stack) -> None:
    running = post(stack, LONG | {"n": 1})
    wait_until(lambda: stack.call(stack.pool.overview()).running == 1)
    waiting = post(stack, LONG)  # an engine has slots for one of them
    wait_until(lambda: stack.call(stack.pool.overview()).waiting == 1)
    waiting.close()
    wait_until(lambda: stack.call(stack.pool.overview()).waiting == 0)
    assert stack.call(stack.pool.overview()).running == 1
    running.close()
    wait_until(lambda: busy(stack) == 0)


def test_other_requests_continue(stack: Stack, http: httpx.Client) -> None:
    connection = post(stack, LONG | {"max_tokens": 100, "stream": True})
    assert b"200 OK" in connection.recv(1000)
    with http.stream("POST", "/v1/completions", json={"prompt": "SLOWab", "max_tokens": 30, "stream": True}) as other:
        lines = other.iter_lines()
        next(lines)
        connection.close()
        *_, done, _ = lines
    assert done == "data: [DONE]"
    wait_until(lambda: busy(stack) == 0)


class ServeCall:
    """The app, called as Ray Serve calls it. `receive` awaits `gone`, which reports the disconnect of the client."""

    def __init__(self, stack: Stack, body: dict[str, Any], gone: Callable[[], Awaitable[Any]]) -> None:
        self.sent: list[Any] = []
        self.began = asyncio.Event()
        self._data = [json.dumps(body).encode()]
        self._gone = gone
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/completions"}
        self.task = asyncio.create_task(
            stack.app(scope | {"headers": [], "query_string": b""}, self._receive, self._send)
        )

    async def _receive(self) -> Any:
        if self._data:
            return {"type": "http.request", "body": self._data.pop(), "more_body": False}
        return await self._gone()

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self.began.set()


async def running(stack: Stack) -> None:
    """Return when an engine runs a request."""
    overview = await stack.pool.overview()
    while not overview.running:
        await asyncio.sleep(0.01)
        overview = await stack.pool.overview()


@pytest.mark.parametrize("stream", [False, True])
def test_serve_cancels_the_call(stack: Stack, stream: bool) -> None:
    """Ray Serve cancels the call when a client disconnects, without a message through `receive`."""

    async def client() -> None:
        call = ServeCall(stack, LONG | {"stream": stream}, asyncio.Event().wait)
        await asyncio.wait_for(call.began.wait() if stream else running(stack), 5)
        call.task.cancel()
        await asyncio.wait([call.task])
        assert call.task.cancelled()

    stack.call(client())
    wait_until(lambda: busy(stack) == 0)


def test_the_server_cannot_report_a_disconnect_any_more(stack: Stack) -> None:
    async def broken() -> None:
        raise RuntimeError("the proxy died")

    async def client() -> int:
        call = ServeCall(stack, LONG, broken)
        await asyncio.wait_for(call.task, 5)
        return int(call.sent[0]["status"])

    assert stack.call(client()) == 499
    wait_until(lambda: busy(stack) == 0)


def left(stack: Stack, body: dict[str, Any], **headers: str) -> None:
    """A stream whose client disconnects after it has begun."""
    connection = post(stack, body | {"stream": True}, **headers)
    assert b"200 OK" in connection.recv(1000)
    connection.close()


@pytest.mark.parametrize("headers", [{"Orca_Resumable": "true"}, {"Idempotency_Key": "grace"}])
@pytest.mark.parametrize("grace", [0.1, 600.0])
def test_a_resumable_request_has_a_grace(
    redis_url: str, tiny_folder: Path, headers: dict[str, str], grace: float
) -> None:
    settings = Settings(constants=Constants(grace=grace))
    with Stack(redis_url, f"grace-{time.monotonic_ns()}", tiny_folder, settings) as stack:
        left(stack, LONG, **headers)
        wait_until(lambda: stack.app.state.gateway.requests == 0)  # the gateway has noticed
        if grace > 1:
            assert busy(stack) == 1
        else:
            wait_until(lambda: busy(stack) == 0)


def test_a_follower_that_stays_keeps_it_alive(redis_url: str, tiny_folder: Path) -> None:
    """A follower at the same gateway and one at another; without both the request ends."""
    name, body = f"follow-{time.monotonic_ns()}", {"prompt": "SLOWab", "max_tokens": 380, "stream": True}
    with (
        Stack(redis_url, name, tiny_folder, Settings()) as one,
        Stack(redis_url, name, tiny_folder, Settings(), engine=False) as two,
    ):
        submitter = post(one, body)
        request = re.search(r"orca-request: (\S+)", submitter.recv(1000).decode())
        assert request is not None
        here, there = (get(stack, f"/v1/streams/{request[1]}") for stack in (one, two))
        for follower in (here, there):
            assert b"200 OK" in follower.recv(1000)
        for going in (submitter, here):
            going.close()
            assert there.recv(1)
            assert busy(one) == 1
        there.close()
        wait_until(lambda: busy(one) == 0)


def test_the_pool_is_unavailable_when_a_client_disconnects(tmp_path: Path, tiny_folder: Path) -> None:
    with Server(tmp_path) as server, Stack(server.url, "p", tiny_folder, Settings(), engine=False) as stack:
        stack.call(show_an_engine(stack))
        connection = post(stack, LONG | {"stream": True})
        wait_until(lambda: busy(stack) == 1)
        server.call(server.server.stop())
        connection.close()
        wait_until(lambda: stack.app.state.gateway.requests == 0)  # it noticed, and cannot tell the pool
        server.call(server.server.start())
        wait_until(lambda: busy(stack) == 0)


def test_a_request_with_a_key_continues_and_is_found_again(stack: Stack, http: httpx.Client) -> None:
    body = {"prompt": "SLOWkey ", "max_tokens": 40}
    connection = post(stack, body | {"stream": True}, Idempotency_Key="again")
    first = b""
    while b"data: " not in first:
        first += connection.recv(1000)
    connection.close()
    whole = http.post("/v1/completions", json=body, headers={"Idempotency-Key": "again"}).json()
    assert whole["id"].encode() in first
    assert whole["choices"][0]["text"] == ("SLOWkey " * 10)[:40]
    assert whole["usage"]["completion_tokens"] == 40


def test_two_requests_at_once_with_one_key_get_the_same_tokens(stack: Stack, http: httpx.Client) -> None:
    body = {"prompt": "SLOWtwo ", "max_tokens": 30, "n": 2}
    other = post(stack, body, Idempotency_Key="twins", Connection="close")
    wait_until(lambda: busy(stack) == 2)
    mine = http.post("/v1/completions", json=body, headers={"Idempotency-Key": "twins"}).json()
    received = b""
    while part := other.recv(65536):
        received += part
    assert json.loads(received.partition(b"\r\n\r\n")[2]) == mine


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_has_a_length(http: httpx.Client, key: str) -> None:
    response = http.post("/v1/completions", json={"prompt": "a"}, headers={"Idempotency-Key": key})
    assert response.status_code == 400
    assert "Idempotency-Key" in response.json()["error"]["message"]
