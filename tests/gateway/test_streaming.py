"""Streams: comments while there are no events, an answer or error at the end, and clients that do not read."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import httpx
import pytest
from clients import get, post, show_an_engine
from stack import Stack
from starlette.types import Message

from gateway import streaming as streams
from gateway.answer.plan import Plan
from gateway.errors import ApiError, Kind
from gateway.executor import FairExecutor
from gateway.pool_client import event_reader, following
from gateway.pool_client.event_reader import EventBuffer
from gateway.pool_client.following import Generation
from gateway.streaming import EventStream, StreamWriter
from services.messages import End, Exchange, Room, Snapshot, TokenEvent
from services.requests import FinishReason
from services.settings.settings import Settings

BODY = {"prompt": "hello", "max_tokens": 3, "stream": True}


@pytest.fixture
def lonely(redis_url: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A gateway with an engine that claims nothing."""
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.1)
    with Stack(redis_url, f"silent-{time.monotonic_ns()}", tiny_folder, Settings(), engine=False) as stack:
        stack.call(show_an_engine(stack, ready=1))
        yield stack


def read_until(connection: socket.socket, mark: bytes, received: bytes = b"") -> bytes:
    while mark not in received:
        part = connection.recv(4096)
        assert part, f"the connection ended after {received!r}"
        received += part
    return received


def request_of(received: bytes) -> str:
    return received.partition(b"orca-request: ")[2].partition(b"\r\n")[0].decode()


def test_comments_before_the_first_token(lonely: Stack) -> None:
    connection = post(lonely, BODY)
    received = read_until(connection, b": keep-alive\n\n")
    assert received.startswith(b"HTTP/1.1 200 OK")
    for _ in range(2):
        read_until(connection, b": keep-alive\n\n")
    assert request_of(received).startswith("cmpl-")
    connection.close()


@pytest.mark.parametrize(
    ("gauges", "reason"),
    [
        ({"ready": 0}, b"no engine is ready"),
        (
            {"ready": 1, "sleep": 2, "waking_seconds": 3},
            b"the model was cold and wakes up, which took 3.0 s last time",
        ),
    ],
)
def test_comments_say_what_a_request_waits_for(lonely: Stack, gauges: dict[str, float], reason: bytes) -> None:
    async def tell() -> None:
        (seat,) = (await lonely.pool.overview()).seats
        await lonely.pool.exchange(Exchange(seat.name, seat.epoch, 2, [], Room(0, 0, 16), gauges=gauges))

    lonely.call(tell())
    connection = post(lonely, BODY)
    read_until(connection, b": " + reason + b"\n\n")
    connection.close()


def test_an_error_after_a_comment_is_a_frame(lonely: Stack) -> None:
    connection = post(lonely, BODY)
    received = read_until(connection, b": keep-alive\n\n")
    assert lonely.call(lonely.pool.cancel(request_of(received)))
    received = read_until(connection, b"\r\n0\r\n\r\n")
    assert b"request_cancelled" in received
    assert b"[DONE]" not in received
    connection.close()


def test_an_error_before_the_first_frame_is_a_status(lonely: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    first = post(lonely, BODY)
    request = request_of(read_until(first, b": keep-alive\n\n"))
    monkeypatch.setattr(streams, "KEEP_ALIVE", 60)
    second = get(lonely, f"/v1/streams/{request}")
    assert lonely.call(lonely.pool.cancel(request))
    assert read_until(second, b"request_cancelled").startswith(b"HTTP/1.1 400")
    assert b"request_cancelled" in read_until(first, b"\r\n0\r\n\r\n")
    first.close()
    second.close()


async def taken(buffer: EventBuffer) -> list[TokenEvent]:
    """All events before the error."""
    events = await buffer.take()
    with pytest.raises(ApiError) as refused:
        await buffer.take()
    assert refused.value.kind is Kind.SLOW_READER
    return events


async def test_too_many_unread_events_are_an_error_after_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "UNREAD", 10)
    slow = EventBuffer("r", ["r/0"])
    for index in range(1000):
        assert slow.put(TokenEvent("r/0", index, 7), 0.0)
    assert [event.index for event in await taken(slow)] == list(range(10))
    assert slow.tokens["r/0"] == [7] * 1000  # the pool may need to get them back
    assert slow.put(TokenEvent("r/0", 1000, None, end=End(FinishReason.LENGTH)), 0.0)
    assert not slow.open


async def test_a_follower_that_takes_events_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "UNREAD", 10)
    reader = EventBuffer("r", ["r/0", "r/1"])
    for index in range(100):
        reader.put(TokenEvent("r/0", index, 7), 0.0)
        reader.put(TokenEvent("r/1", index, 7), 0.0)
        if index % 10 == 9:
            assert len(await reader.take()) == 20


async def test_a_long_snapshot_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "UNREAD", 10)
    follower = EventBuffer("r", ["r/0"])
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


def unread_stream(closed: list[EventBuffer]) -> EventStream:
    generation = Generation(
        cast(Plan, None), EventBuffer("r", ["r/0"]), closed.append, None, partial(FairExecutor().run_answer, "a")
    )
    return EventStream(generation, cast(StreamWriter, Frames()), b"data: x\n\n")


async def test_a_stream_without_a_reader_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WRITE_TIMEOUT", 0.01)
    closed: list[EventBuffer] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await unread_stream(closed)({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert len(closed) == 1


async def test_a_cancelled_stream_sends_nothing_more() -> None:
    """Ray Serve cancels the call of a client that has gone."""
    closed: list[EventBuffer] = []
    sending, ended = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    call = asyncio.create_task(unread_stream(closed)({}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    await sending.wait()
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert ended.is_set()
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


def test_the_followers_of_a_request_are_limited(
    stack: Stack, http: httpx.Client, request_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.get(f"/v1/streams/{request_id}").status_code == 200
    monkeypatch.setattr(following, "MOST_FOLLOWERS", 0)
    refused = http.get(f"/v1/streams/{request_id}")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_followers"
    assert refused.headers["retry-after"]


def test_one_who_posts_again_under_its_key_is_a_follower_too(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MOST_FOLLOWERS", 1)
    body, headers = {"prompt": "SLOWabc", "max_tokens": 380, "stream": True}, {"Idempotency-Key": "followed"}
    with http.stream("POST", "/v1/completions", json=body, headers=headers) as first:
        assert first.status_code == 200
        with http.stream("POST", "/v1/completions", json=body, headers=headers) as second:
            assert second.status_code == 429
