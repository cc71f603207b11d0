"""Bodies that cannot be read get an OpenAI error object with the right status, and the server continues."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from stack import Stack
from test_bad_input import CHAT, COMPLETIONS, check_error

# name -> (path, raw body, status, a word of the message or `param`)
BODIES: dict[str, tuple[str, bytes, int, str]] = {
    "no body": (COMPLETIONS, b"", 400, "JSON"),
    "malformed JSON": (COMPLETIONS, b'{"prompt": "hi"', 400, "JSON"),
    "a JSON list": (COMPLETIONS, b"[1]", 400, "object"),
    "JSON null": (CHAT, b"null", 400, "object"),
    "invalid UTF-8": (COMPLETIONS, b'{"prompt": "\xff\xfe"}', 400, "UTF-8"),
    "half a surrogate pair": (COMPLETIONS, b'{"prompt": "\\ud800"}', 400, "surrogate"),
    "NaN": (COMPLETIONS, b'{"prompt": "hi", "temperature": NaN}', 400, "JSON"),
    "Infinity": (COMPLETIONS, b'{"prompt": "hi", "temperature": Infinity}', 400, "JSON"),
    "a number beyond floats": (COMPLETIONS, b'{"prompt": "hi", "temperature": 1e999}', 400, "JSON"),
    "deep nesting": (CHAT, b'{"messages": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", 400, "depth"),
    "nesting over the limit": (CHAT, b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}", 400, "128"),
    "nesting within the limit": (CHAT, b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}", 400, "messages[0]"),
    "nesting in metadata": (
        COMPLETIONS,
        b'{"prompt":"a","metadata":' + b'{"a":' * 100 + b"1" + b"}" * 101,
        400,
        "metad",
    ),
    "nesting in a field that is not read": (
        COMPLETIONS,
        b'{"prompt":"a","prompt_cache_options":' + b'{"a":' * 300 + b"1" + b"}" * 301,
        400,
        "128",
    ),
    "nesting in a field of integers": (
        COMPLETIONS,
        b'{"prompt":"a","stop_token_ids":' + b"[" * 1000 + b"]" * 1000 + b"}",
        400,
        "128",
    ),
    "a body over the limit": (COMPLETIONS, b'{"prompt": "' + b"a" * 100_000 + b'"}', 413, "100000"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be_read(http: httpx.Client, name: str) -> None:
    path, body, status, named = BODIES[name]
    check_error(http.post(path, content=body), status, named)
    good = http.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 2})
    assert good.json()["choices"][0]["text"] == "hi"


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_byte_order_mark_before_the_body_is_left_out(http: httpx.Client, path: str) -> None:
    assert http.post(path, content=b'\xef\xbb\xbf{"prompt": "hi"}').status_code == 200
    check_error(http.post(path, content=b'{"prompt": "hi"}\xef\xbb\xbf'), 400, "JSON")


def test_a_chunked_body_over_the_limit(http: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(200):
            yield b"a" * 1000

    check_error(http.post(COMPLETIONS, content=parts()), 413, "100000")
    assert http.post(COMPLETIONS, json={"prompt": "hi"}).status_code == 200


WITH_A_LENGTH = json.dumps({"prompt": "hi", "max_tokens": 2}).encode()
ZEROS = [0, 1, 5000]  # Python reads at most 4,300 digits as a number


def status(stack: Stack, length: str) -> str:
    """The first line of the answer to a completion whose body is said to have this length."""
    at = urlsplit(stack.url)
    lines = ["POST /v1/completions HTTP/1.1", f"Host: {at.netloc}", f"Content-Length: {length}", "Connection: close"]
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + WITH_A_LENGTH)
        return connection.makefile().readline().strip()


@pytest.mark.parametrize("zeros", ZEROS)
def test_a_length_that_begins_with_zeros(stack: Stack, zeros: int) -> None:
    assert status(stack, "0" * zeros + str(len(WITH_A_LENGTH))) == "HTTP/1.1 200 OK"


@pytest.mark.parametrize("zeros", ZEROS)
def test_a_length_over_the_limit_is_refused_before_the_body_arrives(stack: Stack, zeros: int) -> None:
    assert status(stack, "0" * zeros + "100001").startswith("HTTP/1.1 413 ")
