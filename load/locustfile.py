"""Locust users that stream chat and completions from an OpenAI server.

    locust -f load/locustfile.py --host http://127.0.0.1:8000 --headless --users 8 --run-time 60s [ChatUser]

Each request fires events of type `SSE`: `ttft` with the first text and, at the end, `e2e` (its length in the statistics
is the number of output tokens) and `tpot`, the mean (e2e - ttft) / (output tokens - 1) in ms. A stream whose connection
breaks, or which the server postpones, is resumed if the server gives its events an `id`; its figures include that time.
A request without a whole answer (a refusal, an error frame, no `[DONE]`) is a failure of `e2e`. Output tokens are
counted by the usage chunk, because a chunk may hold several. Each user waits for its answer: the load is closed-loop.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import gevent
from locust import FastHttpUser, constant, events, task
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS
from locust.exception import StopUser

from load.workloads import BEGINNINGS, QUESTIONS, paper, text_of
from services.client.resuming import PATIENCE, SILENCE, ResumableRequest
from services.client.sse import Events, StreamedAnswer, StreamError

BAD_ANSWER = (StreamError, KeyError, TypeError, ValueError, *FAILURE_EXCEPTIONS)


@events.init_command_line_parser.add_listener
def _arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Orca")
    group.add_argument("--max-tokens", type=int, default=64, help="max_tokens of each request (default: 64)")
    group.add_argument(
        "--trace",
        choices=("questions", "paper"),
        default="questions",
        help="questions: short prompts, in turn; paper: the lengths of the paper's trace, EOS ignored",
    )
    group.add_argument("--schema", help="a file with a JSON schema by which all answers to questions must be valid")
    group.add_argument(
        "--patience", type=float, default=PATIENCE, help="seconds without a sign of life before a stream is given up"
    )
    group.add_argument(
        "--requests", type=int, default=0, help="stop after as many requests, counted in each Locust process (0: never)"
    )


class Endpoint(Protocol):
    """A route, and the bodies of its requests."""

    path: str
    texts: tuple[str, ...]

    def from_text(self, text: str) -> dict[str, Any]: ...
    def from_tokens(self, ids: list[int]) -> dict[str, Any]: ...


class StreamingUser(FastHttpUser):
    """A user that sends one request after the other to its `endpoint`."""

    abstract = True
    wait_time = constant(0)
    network_timeout = SILENCE  # between two reads
    endpoint: Endpoint
    _started = itertools.count()  # numbers requests over all users of this process
    _ended = itertools.count(1)

    def on_start(self) -> None:
        self.model = self._first_model()

    def _first_model(self) -> str:
        """The first id of /v1/models, requested every second until the server answers."""
        while True:
            with self.client.get("/v1/models", catch_response=True) as response:
                try:
                    response.raise_for_status()
                    return str(json.loads(response.text)["data"][0]["id"])
                except (*BAD_ANSWER, IndexError) as error:
                    response.failure(error)
            gevent.sleep(1)

    @task
    def ask(self) -> None:
        number, limit = next(self._started), self._options.requests
        if limit and number >= limit:
            raise StopUser
        self._stream(self.body(number))
        if next(self._ended) == limit:
            gevent.spawn(self.environment.runner.quit)  # not from here: it would kill this greenlet

    @property
    def _options(self) -> Any:
        return self.environment.parsed_options

    def body(self, number: int) -> dict[str, Any]:
        """The JSON body of a request, by its number."""
        common = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        if self._options.trace == "questions":
            text = self.endpoint.texts[number % len(self.endpoint.texts)]
            if self._options.schema:
                common |= {"response_format": response_format(self._options.schema)}
            return common | {"max_tokens": self._options.max_tokens} | self.endpoint.from_text(text)
        job = TRACE[number % len(TRACE)]
        return common | {"max_tokens": job.max_new_tokens, "ignore_eos": True} | self.endpoint.from_tokens(job.prompt)

    def _stream(self, body: dict[str, Any]) -> None:
        answer, first, error = StreamedAnswer(), None, None
        resumable = ResumableRequest(answer, self._options.patience)
        begin = time.perf_counter()
        try:
            while not answer.done:
                for brought in self._connection(body, resumable, answer):
                    if brought and first is None:
                        first = time.perf_counter() - begin
                        self._fire("ttft", first)
            answer.check()
        except BAD_ANSWER as e:
            error = e
        end = time.perf_counter() - begin
        tokens = answer.completion_tokens or 0
        if error is None and first is not None and tokens > 1:
            self._fire("tpot", (end - first) / (tokens - 1), tokens)
        self._fire("e2e", end, tokens, error)

    def _connection(self, body: dict[str, Any], resumable: ResumableRequest, answer: StreamedAnswer) -> Iterator[bool]:
        """Stream over one connection: for each event, whether it held text. Waits at the end unless `[DONE]` came."""
        # a response that is not entered as a context fires no event of its own
        response = self.client.post(
            self.endpoint.path, json=body, headers=resumable.headers(), stream=True, catch_response=True
        )
        if response.status_code not in (0, 200):
            headers: Any = response.headers or {}
            text = (response.text or "").encode()
            gevent.sleep(resumable.refused(response.status_code, headers.get("Retry-After"), text))
            return
        try:
            response.raise_for_status()
            parser = Events()
            # readline, as read(n) and so iter_content wait for n bytes
            while line := response.stream.readline(b"\n"):
                if (event := parser.feed(line)) is not None:
                    yield answer.feed(event)
            broken = "the stream ended without [DONE]"
        except FAILURE_EXCEPTIONS as error:
            broken = repr(error)
        if not answer.done:
            gevent.sleep(resumable.broken(broken))

    def _fire(self, name: str, seconds: float, tokens: int = 0, error: Exception | None = None) -> None:
        self.environment.events.request.fire(
            request_type="SSE",
            name=name,
            response_time=seconds * 1000,
            response_length=tokens,
            exception=error,
            context={"path": self.endpoint.path},
        )


@functools.cache
def response_format(schema: str) -> dict[str, Any]:
    """The field for documents that are valid by the schema in this file."""
    described = {"name": "document", "strict": True, "schema": json.loads(Path(schema).read_text())}
    return {"type": "json_schema", "json_schema": described}


TRACE = paper()


class Chat:
    path = "/v1/chat/completions"
    texts: tuple[str, ...] = QUESTIONS

    def from_text(self, text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    def from_tokens(self, ids: list[int]) -> dict[str, Any]:
        return self.from_text(text_of(len(ids)))


class Completion:
    path = "/v1/completions"
    texts: tuple[str, ...] = BEGINNINGS

    def from_text(self, text: str) -> dict[str, Any]:
        return {"prompt": text}

    def from_tokens(self, ids: list[int]) -> dict[str, Any]:
        return {"prompt": ids}


class ChatUser(StreamingUser):
    endpoint = Chat()


class CompletionUser(StreamingUser):
    endpoint = Completion()
