"""A client that does not read costs a bounded amount of memory, and others nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import httpx
import pytest
from clients import post
from stack import Stack
from starlette.types import Message

from gateway import generations, inbox, streams
from gateway.desk import Desk
from gateway.errors import ApiError, Kind
from gateway.generation import Generation
from gateway.inbox import Inbox
from gateway.plan import Plan
from gateway.streams import EventStream, Writer
from services.messages import End, Snapshot, TokenEvent
from services.requests import FinishReason


async def taken(inbox: Inbox) -> list[TokenEvent]:
    """All that is given before the error."""
    events = await inbox.take()
    with pytest.raises(ApiError) as refused:
        await inbox.take()
    assert refused.value.kind is Kind.SLOW_READER
    return events


async def test_events_beyond_the_bound_are_an_error_after_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "UNREAD", 10)
    slow = Inbox("r", ["r/0"])
    for index in range(1000):
        assert slow.put(TokenEvent("r/0", index, 7), 0.0)
    assert [event.index for event in await taken(slow)] == list(range(10))
    assert slow.tokens["r/0"] == [7] * 1000  # what the pool may need back
    assert slow.put(TokenEvent("r/0", 1000, None, end=End(FinishReason.LENGTH)), 0.0)
    assert not slow.open


async def test_who_takes_meets_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "UNREAD", 10)
    reader = Inbox("r", ["r/0", "r/1"])
    for index in range(100):
        reader.put(TokenEvent("r/0", index, 7), 0.0)
        reader.put(TokenEvent("r/1", index, 7), 0.0)
        if index % 10 == 9:
            assert len(await reader.take()) == 20


async def test_a_long_snapshot_is_not_held_against_a_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "UNREAD", 10)
    follower = Inbox("r", ["r/0"])
    follower.catch_up(Snapshot("r/0", True, 3, 0, [7] * 100), 0.0)
    assert len(await follower.take()) == 100
    assert follower.put(TokenEvent("r/0", 100, 7), 0.0)
    assert len(await follower.take()) == 1


class Frames:
    done = False

    def write(self, events: list[TokenEvent]) -> bytes:
        return b"data: x\n\n"

    def fail(self, error: ApiError) -> bytes:
        self.done = True
        return b"data: error\n\n"


async def test_a_stream_that_nobody_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WRITE_TIMEOUT", 0.01)
    closed: list[Inbox] = []
    generation = Generation(cast(Plan, None), Inbox("r", ["r/0"]), closed.append, None, partial(Desk().answer, "a"))

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await EventStream(generation, cast(Writer, Frames()), b"data: x\n\n")({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert len(closed) == 1


@pytest.fixture
def request_id(stack: Stack) -> str:
    connection = post(stack, {"prompt": "hello", "max_tokens": 3, "stream": True}, Orca_Resumable="true")
    received = b""
    while part := connection.recv(4096):
        received += part
        if b"[DONE]" in received:
            break
    return received.partition(b"orca-request: ")[2].partition(b"\r\n")[0].decode()


def test_a_request_has_so_many_followers_at_most(
    stack: Stack, http: httpx.Client, request_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.get(f"/v1/streams/{request_id}").status_code == 200
    monkeypatch.setattr(generations, "MOST_FOLLOWERS", 0)
    refused = http.get(f"/v1/streams/{request_id}")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_followers"
    assert refused.headers["retry-after"]


def test_one_who_posts_again_under_its_key_is_a_follower_too(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "MOST_FOLLOWERS", 1)
    body, headers = {"prompt": "SLOWabc", "max_tokens": 380, "stream": True}, {"Idempotency-Key": "followed"}
    with http.stream("POST", "/v1/completions", json=body, headers=headers) as first:
        assert first.status_code == 200
        with http.stream("POST", "/v1/completions", json=body, headers=headers) as second:
            assert second.status_code == 429
