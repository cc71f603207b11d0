"""What tests do as clients."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from stack import Stack


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "not within 5 s"
        time.sleep(0.02)


def post(stack: Stack, body: dict[str, Any], **headers: str) -> socket.socket:
    """A request on a connection of its own, which the test may close."""
    host, port = stack.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/1.1", f"Host: {host}", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return connection
