"""`orca chat`: talks to a running server. The answer streams as it is generated, and resumes if a connection breaks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

from cli.arguments import Parser
from cli.server import add_server, headers, served_model
from load.resuming import SILENCE, Comeback
from load.sse import Answer, Events, StreamError
from services.errors import OrcaError


def run(arguments: list[str]) -> None:
    parser = Parser("orca chat", "Talk to a running server. Ctrl-D ends.")
    add_server(parser)
    parser.add_argument("--system", default="", help="a system message")
    parser.add_argument("--max-tokens", type=int, help="longest answer, in tokens")
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    parser.add_argument("--priority", type=int, help="class of the requests, the least first")
    parser.add_argument("message", nargs="*", help="say this, print the answer and end")
    options = parser.read(arguments)
    timeout = httpx.Timeout(SILENCE, connect=5)
    with httpx.Client(base_url=options.url, headers=headers(options.api_key), timeout=timeout) as client:
        chat = Chat(client, options.system, options.max_tokens, options.temperature, options.priority)
        if options.message:
            chat.say(" ".join(options.message))
        else:
            for line in _lines():
                chat.say(line)


class Chat:
    """A conversation. Each turn is sent with all turns before it."""

    def __init__(
        self,
        client: httpx.Client,
        system: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
        priority: int | None = None,
    ) -> None:
        self._client = client
        self._messages = [{"role": "system", "content": system}] if system else []
        self._fields = {
            "model": served_model(client),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "priority": priority,
        }

    def say(self, text: str) -> None:
        """Send `text` and print the answer as it arrives."""
        self._messages.append({"role": "user", "content": text})
        printed = ""
        for so_far in self._stream():
            print(so_far[len(printed) :], end="", flush=True)
            printed = max(printed, so_far, key=len)  # after a restart the server may answer from the first token
        print()
        self._messages.append({"role": "assistant", "content": printed})

    def _stream(self) -> Iterator[str]:
        """Yield the text of the answer so far, each time it has grown."""
        body = {k: v for k, v in self._fields.items() if v is not None} | {"messages": self._messages, "stream": True}
        answer = Answer()
        comeback = Comeback(answer)
        try:
            while not answer.done:
                for brought_text in _connection(self._client, body, answer, comeback):
                    if brought_text:
                        yield answer.choices[0].text
        except StreamError as error:
            raise OrcaError(str(error)) from error


def _connection(client: httpx.Client, body: dict[str, Any], answer: Answer, comeback: Comeback) -> Iterator[bool]:
    """Yield for each event of one connection whether it has text. Waits before it returns without `[DONE]`."""
    try:
        with client.stream("POST", "/v1/chat/completions", json=body, headers=comeback.headers()) as response:
            if not response.is_success:
                after = response.headers.get("Retry-After")
                time.sleep(comeback.refused(response.status_code, after, response.read()))
                return
            events = Events()
            for line in response.iter_lines():
                if (event := events.feed(line.encode())) is not None:
                    yield answer.feed(event)
        broken = "the stream ended without [DONE]"
    except httpx.HTTPError as error:
        broken = f"the connection broke: {error}"
    if not answer.done:
        time.sleep(comeback.broken(broken))


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
