"""No engine, a full pool, an unavailable pool: an error with Retry-After, and recovery afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients import post, show_an_engine
from sse_client import completion_text
from stack import NAME, Server, Stack
from waiting import wait_until

from cli import status
from services.errors import OrcaError
from services.messages import Exchange, Room
from services.overview import Overview
from services.pool.pool import RequestPool
from services.settings.settings import Settings

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 3}


def check(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    assert response.json()["error"]["code"] == code
    assert int(response.headers["retry-after"]) >= 1


@pytest.fixture
def lonely(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    """A gateway on a pool without an engine."""
    with Stack(redis_url, f"lonely-{time.monotonic_ns()}", tiny_folder, Settings(max_waiting=2), engine=False) as stack:
        yield stack


def test_no_engine_yet(lonely: Stack) -> None:
    with httpx.Client(base_url=lonely.url) as http:
        assert http.get("/health").status_code == 200
        wait_until(lambda: http.get("/version").status_code == 200)  # the first heartbeat has read the pool
        check(http.get("/ready"), 503, "no_engine")
        check(http.post("/v1/completions", json=BODY), 503, "no_engine")
        assert http.post("/v1/completions", json={"prompt": ""}).status_code == 400


def test_requests_for_a_model_that_no_engine_can_load_get_the_reason(lonely: Stack) -> None:
    reason = "The model could not be loaded: it is too large"

    async def fail() -> None:
        epoch = (await lonely.pool.acquire("seat", "test", 60)).epoch
        told = Exchange("seat", epoch, 1, [], Room(0, 0, 1), gauges={"ready": 0}, summary="it is too large")
        await lonely.pool.exchange(told)

    lonely.call(fail())
    with httpx.Client(base_url=lonely.url) as http:
        wait_until(lambda: http.get("/v1/models").json()["data"][0]["status"] == "failed")
        assert http.get("/v1/models").json()["data"][0]["failure"] == "it is too large"
        refused = http.post("/v1/completions", json=BODY)
        check(refused, 503, "no_engine")
        assert refused.json()["error"]["message"] == f"{reason}; try again later."
        assert http.get("/ready").json()["error"]["message"] == reason


@pytest.mark.parametrize(
    ("gauges", "status", "text"),
    [
        ({"ready": 1}, 200, ""),
        ({"ready": 1, "sleep": 0}, 200, ""),
        ({"ready": 1, "sleep": 1}, 200, "asleep"),
        ({"ready": 1, "sleep": 3}, 200, "off"),
        ({"ready": 0, "sleep": 2}, 503, "No engine is ready."),  # it did not wake up
        ({"ready": 0}, 503, "No engine is ready."),
        ({}, 503, "No engine is ready."),
    ],
)
def test_ready_is_the_state_of_a_living_seat(lonely: Stack, gauges: dict[str, float], status: int, text: str) -> None:
    lonely.call(show_an_engine(lonely, **gauges))
    wait_until(lambda: httpx.get(lonely.url + "/version").json().get("numerics") is not None)
    reply = httpx.get(lonely.url + "/ready")
    assert (reply.status_code, reply.text if status == 200 else reply.json()["error"]["message"]) == (status, text)


def test_a_seat_that_was_given_back_is_not_ready(lonely: Stack) -> None:
    async def leave() -> None:
        grant = await lonely.pool.acquire("seat", "another", 60)
        await lonely.pool.release("seat", grant.epoch)

    lonely.call(show_an_engine(lonely, ready=1))
    lonely.call(leave())
    wait_until(lambda: httpx.get(lonely.url + "/ready").status_code == 503)
    check(httpx.get(lonely.url + "/ready"), 503, "no_engine")


def test_a_full_pool(lonely: Stack) -> None:
    lonely.call(show_an_engine(lonely))
    with httpx.Client(base_url=lonely.url) as http:
        first = post(lonely, BODY | {"n": 2})
        wait_until(lambda: lonely.call(lonely.pool.overview()).waiting == 2)
        refused = http.post("/v1/completions", json=BODY)
        check(refused, 429, "rate_limit_exceeded")
        assert "waiting" in refused.json()["error"]["message"]
        first.close()
        wait_until(lambda: lonely.call(lonely.pool.overview()).waiting == 0)
        second = post(lonely, BODY)
        wait_until(lambda: lonely.call(lonely.pool.overview()).waiting == 1)
        second.close()


def test_a_tenant_at_its_bound_gets_an_error_that_names_it(redis_url: str, tiny_folder: Path) -> None:
    """In the format of either API, with the time to wait."""
    settings = Settings(max_waiting=4, api_keys={"ka": "a", "kb": "b"})
    with Stack(redis_url, f"keyed-{time.monotonic_ns()}", tiny_folder, settings, engine=False) as stack:
        stack.call(show_an_engine(stack))
        first = post(stack, BODY | {"n": 2}, Authorization="Bearer ka")
        wait_until(lambda: stack.call(stack.pool.overview()).waiting == 2)
        with httpx.Client(base_url=stack.url, headers={"x-api-key": "ka"}) as http:
            refused = http.post("/v1/completions", json=BODY)
            check(refused, 429, "rate_limit_exceeded")
            assert "This API key has 2 waiting choices of at most 2" in refused.json()["error"]["message"]
            message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "model": NAME}
            anthropic = http.post("/v1/messages", json=message)
            assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (429, "rate_limit_error")
            assert "This API key has 2 waiting choices of at most 2" in anthropic.json()["error"]["message"]
            assert anthropic.headers["retry-after"] == refused.headers["retry-after"]
        second = post(stack, BODY | {"n": 2}, Authorization="Bearer kb")
        wait_until(lambda: stack.call(stack.pool.overview()).waiting == 4)
        first.close()
        second.close()


def test_a_request_that_can_never_fit_has_no_retry_after(lonely: Stack) -> None:
    lonely.call(show_an_engine(lonely))
    response = httpx.post(lonely.url + "/v1/completions", json=BODY | {"n": 3})
    assert response.status_code == 400
    assert "3 choices" in response.json()["error"]["message"]


def test_an_outage_of_the_pool(tmp_path: Path, tiny_folder: Path) -> None:
    """Running requests are answered completely, each token once; new requests are refused meanwhile."""
    with (
        Server(tmp_path) as server,
        Stack(server.url, "p", tiny_folder, Settings()) as stack,
        httpx.Client(base_url=stack.url, timeout=60) as http,
        http.stream(
            "POST", "/v1/completions", json={"prompt": "SLOWabc ", "max_tokens": 80, "stream": True}
        ) as running,
    ):
        lines = running.iter_lines()
        begun = [next(lines)]
        server.call(server.server.stop())
        check(http.post("/v1/completions", json=BODY), 503, "pool_unavailable")
        check(http.get("/ready"), 503, "pool_unavailable")
        assert http.get("/health").status_code == 200
        with pytest.raises(OrcaError, match=r"no figures: .*The request pool does not answer"):
            status.run(["--url", stack.url])
        server.call(server.server.start())
        assert completion_text([*begun, *lines]) == "SLOWabc " * 10
        assert http.post("/v1/completions", json=BODY).status_code == 200


def test_a_pool_with_full_memory_continues_its_requests(stack: Stack, http: httpx.Client) -> None:
    def memory(most: str) -> None:
        stack.call(stack.pool._server.command("CONFIG", "SET", "maxmemory", most))

    body = {"prompt": "SLOWabc ", "max_tokens": 80, "stream": True}
    try:
        with http.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            begun = [next(lines)]
            memory("1")
            check(http.post("/v1/completions", json=BODY), 503, "pool_unavailable")
            wait_until(lambda: http.get("/ready").status_code == 503)
            check(http.get("/ready"), 503, "pool_unavailable")
            assert completion_text([*begun, *lines]) == "SLOWabc " * 10
    finally:
        memory("0")
    assert http.post("/v1/completions", json=BODY).status_code == 200


def test_a_gateway_starts_before_its_pool(tmp_path: Path, tiny_folder: Path) -> None:
    with Server(tmp_path) as server:
        server.call(server.server.stop())
        with Stack(server.url, "p", tiny_folder, Settings(), engine=False) as stack:
            check(httpx.post(stack.url + "/v1/completions", json=BODY), 503, "pool_unavailable")
            server.call(server.server.start())
            wait_until(lambda: httpx.get(stack.url + "/metrics").status_code == 200)
            wait_until(lambda: stack.call(stack.pool.overview()).gateways == 1)


def test_an_error_while_connecting_is_tried_again(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connecting fails once with an error other than an outage. The gateway must try again: without its reader it would
    submit requests and never receive their tokens."""
    connect, failures = RequestPool.connect, [RuntimeError("a fault")]

    async def fail_once(pool: RequestPool) -> None:
        if pool.name == "deaf" and failures:
            raise failures.pop()
        await connect(pool)

    monkeypatch.setattr(RequestPool, "connect", fail_once)
    with Server(tmp_path) as server, Stack(server.url, "deaf", tiny_folder, Settings()) as stack:
        wait_until(lambda: not failures)
        assert httpx.get(stack.url + "/health").status_code == 200
        assert httpx.post(stack.url + "/v1/completions", json=BODY, timeout=20).status_code == 200


def test_health_fails_when_parts_of_the_gateway_have_ended(redis_url: str, tiny_folder: Path) -> None:
    with Stack(redis_url, "ended-parts", tiny_folder, Settings(), engine=False) as stack:
        assert httpx.get(stack.url + "/health").status_code == 200
        stack.app.state.gateway._life.get_loop().call_soon_threadsafe(stack.app.state.gateway._life.cancel)
        wait_until(lambda: httpx.get(stack.url + "/health").status_code == 503)


def test_concurrent_metrics_requests_share_a_read(lonely: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    overview, reads = RequestPool.overview, 0

    async def counted(pool: RequestPool) -> Overview:
        nonlocal reads
        reads += 1
        return await overview(pool)

    monkeypatch.setattr(RequestPool, "overview", counted)
    assert httpx.get(lonely.url + "/health").status_code == 200  # it has started
    heartbeat = lonely.app.state.gateway.first.shards.all[0].heartbeat

    async def ask() -> None:
        await asyncio.gather(*(heartbeat.latest_overview() for _ in range(200)))

    lonely.call(ask())
    assert reads < 20  # one or two reads for them, and those of heartbeats meanwhile
