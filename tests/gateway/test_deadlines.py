"""A request that no engine begins in time ends with a 408 that is not retried, in the format of each API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from clients import show_an_engine
from stack import NAME, Stack
from waiting import wait_until

from gateway.http.headers import MAX_TIMEOUT
from services.settings.settings import Settings

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
SOON = {"X-Queue-Timeout": "0.05"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": ["hello", "you"], "n": 2},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3, "model": NAME},
    "/v1/responses": {"input": "hello"},
}


@pytest.fixture(scope="module")
def busy(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    """A gateway whose only engine claims no requests."""
    with Stack(redis_url, "busy", tiny_folder, Settings(), engine=False) as stack:
        stack.call(show_an_engine(stack, ready=1))
        yield stack


def test_each_route_answers_408_before_the_stream_begins(busy: Stack) -> None:
    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=busy.url, timeout=20) as http:
            asked = [(path, body | {"stream": stream}) for path, body in BODIES.items() for stream in (False, True)]
            return await asyncio.gather(*(http.post(path, json=body, headers=SOON) for path, body in asked))

    for answer in asyncio.run(ask_all()):
        path, streamed = answer.request.url.path, b'"stream":true' in answer.request.content
        if path == "/v1/responses" and streamed:  # its first event shows that it was accepted
            assert answer.status_code == 200
            assert "event: response.failed" in answer.text
            assert "timed out" in answer.text
            continue
        assert (answer.status_code, answer.headers["x-should-retry"]) == (408, "false"), answer.text
        assert answer.headers["content-type"] == "application/json"
        error = answer.json()["error"]
        assert error["type"] == "timeout_error"
        assert path == "/v1/messages" or error["code"] == "queue_timeout"
    assert busy.call(busy.pool.overview()).waiting == 0


def test_a_response_in_the_background_fails(busy: Stack) -> None:
    with httpx.Client(base_url=busy.url, timeout=20) as http:
        body = {"input": "hello", "background": True}
        made = http.post("/v1/responses", json=body, headers=SOON)
        assert made.status_code == 200
        path = f"/v1/responses/{made.json()['id']}"
        wait_until(lambda: http.get(path).json()["status"] == "failed")
        assert "timed out" in http.get(path).json()["error"]["message"]


def test_official_clients_do_not_retry(busy: Stack) -> None:
    def timed_out() -> float:
        return busy.call(busy.pool.overview()).counters.get("orca:timed_out_requests", 0.0)

    before = timed_out()
    with openai.OpenAI(base_url=f"{busy.url}/v1", api_key="none", max_retries=2) as client:
        with pytest.raises(openai.APIStatusError, match="queue timeout") as said:
            client.chat.completions.create(model=NAME, messages=MESSAGES, extra_headers=SOON)
        assert said.value.status_code == 408
    with (
        anthropic.Anthropic(base_url=busy.url, api_key="none", max_retries=2) as client,
        pytest.raises(anthropic.APIStatusError, match="queue timeout"),
    ):
        client.messages.create(model=NAME, messages=MESSAGES, max_tokens=3, extra_headers=SOON)
    assert timed_out() == before + 2


def test_the_setting_is_for_requests_without_the_header(redis_url: str, tiny_folder: Path) -> None:
    settings = Settings(queue_timeout=0.05)
    with Stack(redis_url, "busy-setting", tiny_folder, settings, engine=False) as stack:
        stack.call(show_an_engine(stack))
        with httpx.Client(base_url=stack.url, timeout=20) as http:
            assert http.post("/v1/completions", json={"prompt": "hello"}).status_code == 408
            with pytest.raises(httpx.ReadTimeout):
                http.post("/v1/completions", json={"prompt": "hello"}, headers={"X-Queue-Timeout": "100"}, timeout=0.5)


def test_a_request_that_an_engine_has_begun_is_answered(http: httpx.Client) -> None:
    """The setting does not limit the duration of a request that has begun."""
    body = {"prompt": "SLOWabc ", "max_tokens": 40}
    assert http.post("/v1/completions", json=body, headers={"X-Queue-Timeout": "0.3"}).status_code == 200


@pytest.mark.parametrize("wrong", ["", "soon", "0", "-1", "nan", "inf", str(MAX_TIMEOUT + 1)])
def test_errors_name_a_wrong_header(http: httpx.Client, wrong: str) -> None:
    answer = http.post("/v1/completions", json={"prompt": "hello"}, headers={"X-Queue-Timeout": wrong})
    assert answer.status_code == 400
    assert "X-Queue-Timeout" in answer.json()["error"]["message"]
