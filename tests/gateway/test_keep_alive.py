"""A stream without events has comments, and every request ends with an answer or an error."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import get, post, show_an_engine
from stack import Stack

from gateway.answer import streaming as streams
from services.config import Settings

BODY = {"prompt": "hello", "max_tokens": 3, "stream": True}


@pytest.fixture
def lonely(redis_url: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A gateway without an engine."""
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.1)
    with Stack(redis_url, f"silent-{time.monotonic_ns()}", tiny_folder, Settings(), engine=False) as stack:
        stack.call(show_an_engine(stack))
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


def test_an_error_after_a_comment_is_a_frame(lonely: Stack) -> None:
    connection = post(lonely, BODY)
    received = read_until(connection, b": keep-alive\n\n")
    assert lonely.call(lonely.pool.cancel(request_of(received)))
    received = read_until(connection, b"\r\n0\r\n\r\n")
    assert b"request_cancelled" in received
    assert b"[DONE]" not in received
    connection.close()


def test_an_error_before_is_a_status(lonely: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    first = post(lonely, BODY)
    request = request_of(read_until(first, b": keep-alive\n\n"))
    monkeypatch.setattr(streams, "KEEP_ALIVE", 60)
    second = get(lonely, f"/v1/streams/{request}")
    assert lonely.call(lonely.pool.cancel(request))
    assert read_until(second, b"request_cancelled").startswith(b"HTTP/1.1 400")
    assert b"request_cancelled" in read_until(first, b"\r\n0\r\n\r\n")
    first.close()
    second.close()
