"""Locust users of an OpenAI server: they take turns of the test, send requests, and measure the answers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import gevent
import orjson
from locust import FastHttpUser, task
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS
from locust.exception import StopUser

from load.users.load_test import LoadTest, Turn
from load.users.sample import Sample
from load.users.workloads import Content
from services.client.resuming import SILENCE, ResumableRequest
from services.client.sse import Event, Events, StreamedAnswer, StreamError

BAD_ANSWER = (StreamError, KeyError, TypeError, ValueError, IndexError, *FAILURE_EXCEPTIONS)


class OpenAIUser(FastHttpUser):
    """Sends one request after the other to its `path`; a subclass says which and how.

    Each request fires Locust's `request` event with its end-to-end time and the fields of `Sample` as its context, so
    the row Aggregated counts requests. The rows TTFT, TPOT, MAX GAP and GOODPUT belong to no request of their own.
    """

    abstract = True
    network_timeout = 600.0  # seconds between two reads; a server under load may let a request wait
    path: str
    streams = True

    def on_start(self) -> None:
        self.test: LoadTest = self.environment.load_test
        self.models = self.test.models(self._first_model)
        self._turn: Turn | None = None
        self._conversation: list[dict[str, str]] = []

    def on_stop(self) -> None:
        if self._turn is not None:
            self.test.give_back(self._turn)

    def wait_time(self) -> float:
        """Locust's wait between two tasks: until the next request is due. A user may be stopped meanwhile."""
        self._turn = self.test.take()
        if self._turn is None:
            raise StopUser
        return 0.0 if self._turn.due is None else max(0.0, self._turn.due - self.test.now())

    @task
    def ask(self) -> None:
        if self._turn is None:
            return  # the first task of a user comes before its first wait
        turn, self._turn = self._turn, None
        sample = None
        try:
            sample = self._answered(turn)
        finally:  # also if the user is killed meanwhile
            self.test.end(sample)

    def _answered(self, turn: Turn) -> Sample:
        content = self.test.workload(turn.number)
        body = self._body(content, self.models[turn.number % len(self.models)])
        stage, since = self.test.send(turn)
        late = self.test.now() - since
        answer, times = StreamedAnswer(), list[float]()
        error = None
        try:
            (self._stream if self.streams else self._whole)(body, answer, times)
            self.check(answer)
        except BAD_ANSWER as e:
            error = e if str(e) else StreamError(repr(e))
        end = self.test.now()
        tokens = answer.completion_tokens if answer.completion_tokens is not None else len(times)
        first = times[0] if times else end
        sample = Sample(
            stage=stage,
            user=type(self).__name__,
            path=self.path,
            at=self.test.began_at + since,
            late=late * 1000,
            ttft=(first - since) * 1000 if times or error is None else None,
            e2e=(end - since) * 1000,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=tokens,
            streamed=self.streams,
            error=None if error is None else str(error),
            gaps=[(b - a) * 1000 for a, b in pairwise(times)] if self.streams else [],
        )
        self._fire(sample, error)
        if content.continues:
            self._continue(content, answer, error)
        return sample

    def _fire(self, sample: Sample, error: Exception | None) -> None:
        self.environment.events.request.fire(
            request_type="POST",
            name=self.path,
            response_time=sample.e2e,
            response_length=sample.output_tokens,
            exception=error,
            context=sample.record(),
        )
        rows: list[tuple[str, float | None]] = []
        if self.streams and error is None:
            rows += [("TTFT", sample.ttft), ("TPOT", sample.tpot), ("MAX GAP", sample.worst_gap)]
        assert self.test.tally
        if self.test.tally.targets and sample.meets(self.test.tally.targets):
            rows.append(("GOODPUT", sample.e2e))
        for row, value in rows:
            if value is not None:
                # not as events of their own, which would count as requests in the row Aggregated
                self.environment.stats.get(self.path, row).log(value, sample.output_tokens)

    def _continue(self, content: Content, answer: StreamedAnswer, error: Exception | None) -> None:
        """Keep question and answer for the next turn; a failure and the last turn end the conversation."""
        self._conversation.append({"role": "user", "content": content.chat})
        text = answer.choices[0].text if answer.choices else ""
        self._conversation.append({"role": "assistant", "content": text})
        if error is not None or len(self._conversation) >= 2 * self.test.options.turns:
            self._conversation = []

    def _body(self, content: Content, model: str) -> dict[str, Any]:
        options = self.test.options
        body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": options.max_tokens}
        if self.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if content.max_tokens is not None:
            body["max_tokens"] = content.max_tokens
        if content.exact:
            body["ignore_eos"] = True
        body |= self.asks(content, self._conversation) | content.fields
        if options.extra_body:
            body |= json.loads(options.extra_body)
        return {name: value for name, value in body.items() if value is not None}

    def asks(self, content: Content, conversation: list[dict[str, str]]) -> dict[str, Any]:
        """The fields of a body that depend on the route. Raises ValueError if it cannot send this."""
        raise NotImplementedError  # not an abstract method, as Locust's metaclass is not that of abstract classes

    def check(self, answer: StreamedAnswer) -> None:
        """Raise StreamError unless the answer is whole."""
        answer.check(usage=False)

    def _headers(self) -> dict[str, str]:
        key = self.test.options.api_key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _post(self, body: dict[str, Any], headers: dict[str, str], stream: bool) -> Any:
        # a response that is not entered as a context fires no event of its own
        return self.client.post(
            self.path, json=body, headers=self._headers() | headers, stream=stream, catch_response=True
        )

    def _stream(self, body: dict[str, Any], answer: StreamedAnswer, times: list[float]) -> None:
        response = self._post(body, {}, stream=True)
        _raise_for(response)
        self._read(response, answer, times)

    def _read(self, response: Any, answer: StreamedAnswer, times: list[float]) -> None:
        """Feed the stream to `answer`, and append to `times` when each event with output came."""
        times.extend(self.test.now() for event in _events(response) if answer.feed(event))

    def _whole(self, body: dict[str, Any], answer: StreamedAnswer, times: list[float]) -> None:
        response = self._post(body, {}, stream=False)
        _raise_for(response)
        read_whole(orjson.loads(response.content), answer)

    def _first_model(self) -> str:
        """The first id of /v1/models, requested every second until the server answers."""
        while True:
            begin = time.perf_counter()
            response: Any = self.client.get("/v1/models", headers=self._headers(), catch_response=True)
            try:
                _raise_for(response)
                return str(json.loads(response.text)["data"][0]["id"])
            except BAD_ANSWER as error:
                self.environment.events.request.fire(
                    request_type="GET",
                    name="/v1/models",
                    response_time=(time.perf_counter() - begin) * 1000,
                    response_length=0,
                    exception=error,
                    context={},
                )
            gevent.sleep(1)


class ResumingUser(OpenAIUser):
    """Streams, and resumes a stream whose connection breaks, or which the server postpones, if the server gives its
    events an `id`. The times include the interruption."""

    abstract = True
    network_timeout = SILENCE

    def _stream(self, body: dict[str, Any], answer: StreamedAnswer, times: list[float]) -> None:
        resumable = ResumableRequest(answer, self.test.options.patience)
        while not answer.done:
            gevent.sleep(self._connection(body, resumable, answer, times))

    def _connection(
        self, body: dict[str, Any], resumable: ResumableRequest, answer: StreamedAnswer, times: list[float]
    ) -> float:
        """Stream over one connection; returns the seconds to wait before the next one."""
        response = self._post(body, resumable.headers(), stream=True)
        if response.status_code not in (0, 200):
            headers: Any = response.headers or {}
            text = (response.text or "").encode()
            return resumable.refused(response.status_code, headers.get("Retry-After"), text)
        try:
            response.raise_for_status()
            self._read(response, answer, times)
            broken = "the stream ended without [DONE]"
        except FAILURE_EXCEPTIONS as error:
            broken = repr(error)
        return 0.0 if answer.done else resumable.broken(broken)


def _events(response: Any) -> Iterator[Any]:
    parser = Events()
    # readline, as read(n) and so iter_content wait for n bytes
    while line := response.stream.readline(b"\n"):
        if (event := parser.feed(line)) is not None:
            yield event


def _raise_for(response: Any) -> None:
    """Raise StreamError with the server's own words, or the error of the connection."""
    if response.status_code not in (0, 200):
        text = (response.text or "")[:200]
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = json.loads(response.text)["error"]["message"]
        raise StreamError(f"status {response.status_code}: {text}", response.status_code)
    response.raise_for_status()


def read_whole(body: dict[str, Any], answer: StreamedAnswer) -> None:
    """Fill `answer` with one that was not streamed. Raises StreamError for what is none."""
    for choice in body["choices"]:
        message = choice.get("message")
        calls = [call | {"index": i} for i, call in enumerate((message or {}).get("tool_calls") or ())]
        part = {**choice, "delta": {**message, "tool_calls": calls}} if message else choice
        answer.feed(Event(orjson.dumps({"choices": [part], "usage": body.get("usage")}).decode()))
    answer.done = True
