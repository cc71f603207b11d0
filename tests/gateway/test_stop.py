"""A gateway that stops closes its streams without a last event; they resume at another gateway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients import post
from sse_client import DONE, RESUMABLE, events, read, rest
from stack import Stack

from services.settings.settings import Settings

BODY = {"prompt": "SLOWab ", "max_tokens": 60}


@pytest.fixture
def pair(redis_url: str, tiny_folder: Path) -> Iterator[tuple[Stack, Stack]]:
    """Two gateways on one pool; the test stops the second."""
    name = f"stop-{time.monotonic_ns()}"
    with (
        Stack(redis_url, name, tiny_folder, Settings()) as stays,
        Stack(redis_url, name, tiny_folder, Settings(), engine=False) as goes,
    ):
        yield stays, goes


@pytest.mark.parametrize("headers", [{}, RESUMABLE])
def test_a_stream_resumes_at_another_gateway(pair: tuple[Stack, Stack], headers: dict[str, str]) -> None:
    """The stream resumes after an id, or begins again without one."""
    stays, goes = pair
    said = []
    asked: dict[str, Any] = {"json": BODY | {"stream": True}, "headers": headers}
    with httpx.Client(timeout=20) as http, http.stream("POST", goes.url + "/v1/completions", **asked) as response:
        stream = events(response)
        said.append(next(stream))
        goes.call(goes.app.state.gateway.stop())
        with pytest.raises(httpx.RemoteProtocolError):
            said.extend(stream)
    assert DONE not in said
    assert not any('"error"' in event.data for event in said)
    with httpx.Client(base_url=stays.url, timeout=20) as http:
        if headers:
            said += rest(http, said[-1].id or "")
        else:
            said = read(http.get(f"/v1/streams/{said[0].json()['id']}"))
    assert said.pop() == DONE
    assert "".join(event.json()["choices"][0]["text"] for event in said) == ("SLOWab " * 9)[:60]


def test_a_whole_answer_gets_an_error(pair: tuple[Stack, Stack]) -> None:
    stays, goes = pair
    connection = post(goes, BODY, Idempotency_Key="again")
    while stays.call(stays.pool.overview()).running == 0:
        time.sleep(0.02)
    goes.call(goes.app.state.gateway.stop())
    received = connection.recv(4096)
    assert received.startswith(b"HTTP/1.1 503")
    assert b"shutting_down" in received
    connection.close()
    whole = httpx.post(stays.url + "/v1/completions", json=BODY, headers={"Idempotency-Key": "again"}, timeout=20)
    assert whole.json()["choices"][0]["text"] == ("SLOWab " * 9)[:60]
