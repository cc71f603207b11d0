"""Helpers of tests that act as clients."""

from __future__ import annotations

import json
import socket
from typing import Any

from stack import Stack

from services.messages import Exchange, Room


async def show_an_engine(stack: Stack, **gauges: float) -> None:
    """Publish the figures of an engine that claims no requests."""
    epoch = (await stack.pool.acquire("seat", "test", 60)).epoch
    exchange = Exchange("seat", epoch, 1, [], Room(0, 0, 16), figures=stack.figures, gauges=gauges)
    await stack.pool.exchange(exchange)


def post(stack: Stack, body: dict[str, Any], **headers: str) -> socket.socket:
    """A request on its own connection, which the test can close."""
    data = json.dumps(body).encode()
    return _sent(stack, "POST /v1/completions", data, headers | {"Content-Length": str(len(data))})


def get(stack: Stack, path: str, **headers: str) -> socket.socket:
    return _sent(stack, f"GET {path}", b"", headers)


def _sent(stack: Stack, what: str, data: bytes, headers: dict[str, str]) -> socket.socket:
    host, port = stack.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    lines = [f"{what} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return connection
