"""`orca chat`: talk to a running server. The answer is streamed, and resumed when the connection breaks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

from cli.arguments import Parser
from cli.server import add_server, connection, served_model
from services.client.resuming import SILENCE, ResumableRequest
from services.client.sse import Events, StreamedAnswer, StreamError
from services.errors import OrcaError


def run(arguments: list[str]) -> None:
    parser = Parser("orca chat", "Talk to a running server. Ctrl-D ends.")
    add_server(parser)
    parser.add_argument("--model", default="", help="a model or an adapter of the server; by default its first model")
    parser.add_argument("--system", default="", help="a system message")
    parser.add_argument("--max-tokens", type=int, help="longest answer, in tokens")
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    parser.add_argument("--priority", type=int, help="class of the requests, the least first")
    parser.add_argument("message", nargs="*", help="say this, print the answer and end")
    options = parser.read(arguments)
    timeout = httpx.Timeout(SILENCE, connect=5)
    with httpx.Client(**connection(options.url, options.api_key), timeout=timeout) as client:
        model = options.model or served_model(client)
        fields = {name: getattr(options, name) for name in ("max_tokens", "temperature", "priority")}
        chat = Chat(client, model, options.system, **fields)
        if options.message:
            chat.say(" ".join(options.message))
        else:
            for line in _lines():
                chat.say(line)


class Chat:
    """A conversation: each turn is sent together with all earlier ones."""

    def __init__(self, client: httpx.Client, model: str, system: str = "", **fields: Any) -> None:
        """`fields` are further ones of each request; None: it has none of this name."""
        self._client = client
        self._messages = [{"role": "system", "content": system}] if system else []
        self._fields = {"model": model} | {name: value for name, value in fields.items() if value is not None}

    def say(self, text: str) -> None:
        """Send `text` and print the answer as it arrives."""
        self._messages.append({"role": "user", "content": text})
        printed = ""
        for so_far in self._stream():
            print(so_far[len(printed) :], end="", flush=True)
            # a server that forgot the request sends it again from its first token
            printed = max(printed, so_far, key=len)
        print()
        self._messages.append({"role": "assistant", "content": printed})

    def _stream(self) -> Iterator[str]:
        """The answer's text so far, each time it has grown."""
        body = self._fields | {"messages": self._messages, "stream": True}
        answer = StreamedAnswer()
        resumable = ResumableRequest(answer)
        try:
            while not answer.done:
                for brought_text in _connection(self._client, body, answer, resumable):
                    if brought_text:
                        yield answer.choices[0].text
        except StreamError as error:
            raise OrcaError(str(error)) from error


def _connection(
    client: httpx.Client, body: dict[str, Any], answer: StreamedAnswer, resumable: ResumableRequest
) -> Iterator[bool]:
    """Stream over one connection: for each event, whether it held text. Waits at the end unless `[DONE]` came."""
    try:
        with client.stream("POST", "/v1/chat/completions", json=body, headers=resumable.headers()) as response:
            if not response.is_success:
                after = response.headers.get("Retry-After")
                time.sleep(resumable.refused(response.status_code, after, response.read()))
                return
            events = Events()
            for line in response.iter_lines():
                if (event := events.feed(line.encode())) is not None:
                    yield answer.feed(event)
        broken = "the stream ended without [DONE]"
    except httpx.HTTPError as error:
        broken = f"the connection broke: {error}"
    if not answer.done:
        time.sleep(resumable.broken(broken))


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
