"""`orca chat`: talk to a running server; the answer streams as it is made."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

import httpx

from cli.server import base_url, served_model
from services.errors import OrcaError


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("orca chat", description="Talk to a running server. Ctrl-D ends.")
    parser.add_argument("--url", default=base_url(), help="address of the server (default: %(default)s)")
    parser.add_argument("--system", default="", help="a system message")
    parser.add_argument("--max-tokens", type=int, help="longest answer, in tokens")
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    parser.add_argument("message", nargs="*", help="say this, print the answer and end")
    options = parser.parse_args(arguments)
    with httpx.Client(base_url=options.url, timeout=httpx.Timeout(None, connect=5)) as client:
        chat = Chat(client, options.system, options.max_tokens, options.temperature)
        if options.message:
            chat.say(" ".join(options.message))
        else:
            for line in _lines():
                chat.say(line)


class Chat:
    """A conversation: each turn is sent with all before it."""

    def __init__(self, client: httpx.Client, system: str, max_tokens: int | None, temperature: float | None) -> None:
        self._client = client
        self._messages = [{"role": "system", "content": system}] if system else []
        self._fields = {"max_tokens": max_tokens, "temperature": temperature, "model": served_model(client)}

    def say(self, text: str) -> None:
        """Send `text`, print the answer piece by piece."""
        self._messages.append({"role": "user", "content": text})
        answer = ""
        for piece in self._stream():
            print(piece, end="", flush=True)
            answer += piece
        print()
        self._messages.append({"role": "assistant", "content": answer})

    def _stream(self) -> Iterator[str]:
        body = {k: v for k, v in self._fields.items() if v is not None} | {"messages": self._messages, "stream": True}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise OrcaError(response.json()["error"]["message"])
                yield from _pieces(response.iter_lines())
        except httpx.HTTPError as error:
            raise OrcaError(f"the connection broke: {error}") from error


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """The pieces of text in a stream of server-sent events."""
    for line in lines:
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise OrcaError(event["error"]["message"])
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""


def _lines() -> Iterator[str]:
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            print()
            return
        if line.strip():
            yield line
