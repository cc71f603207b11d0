"""The header `Content-Length`, whose digits may begin with zeros."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest
from stack import Stack

BODY = json.dumps({"prompt": "hi", "max_tokens": 2}).encode()
ZEROS = [0, 1, 5000]  # Python reads at most 4,300 digits as a number


def status(stack: Stack, length: str) -> str:
    """The first line of the answer to a completion whose body is said to have this length."""
    at = urlsplit(stack.url)
    lines = ["POST /v1/completions HTTP/1.1", f"Host: {at.netloc}", f"Content-Length: {length}", "Connection: close"]
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + BODY)
        return connection.makefile().readline().strip()


@pytest.mark.parametrize("zeros", ZEROS)
def test_a_length_that_begins_with_zeros(stack: Stack, zeros: int) -> None:
    assert status(stack, "0" * zeros + str(len(BODY))) == "HTTP/1.1 200 OK"


@pytest.mark.parametrize("zeros", ZEROS)
def test_a_length_over_the_limit_is_refused_before_the_body_arrives(stack: Stack, zeros: int) -> None:
    assert status(stack, "0" * zeros + "100001").startswith("HTTP/1.1 413 ")
