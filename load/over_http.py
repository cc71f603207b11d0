"""A trace over HTTP: each request as a stream from a running server, timed as its user sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import aiohttp

from load.trace import Answer, Request, Run, run_trace
from services.client.resuming import PATIENCE
from services.client.sse import Event, StreamedAnswer
from services.client.streaming import follow, open_session

NO_ID = -1  # stands for a token of a server that sends texts without ids


async def run_over_http(url: str, requests: Sequence[Request], reuse: bool = True) -> Run:
    """Run `requests` on the server at `url`. `reuse`: whether a connection serves several requests, which not every
    server allows. Raises StreamError for a stream that is not whole."""
    async with open_session(url) as session:
        if not reuse:
            session.headers["Connection"] = "close"
        return Run(await run_trace(OverHttp(session), requests))


class OverHttp:
    """A server as the system that answers requests; the trace begins when this is created.

    An event with text but without ids counts as one token, as llama.cpp's server sends them. With `resume` a stream
    that breaks or is postponed goes on."""

    def __init__(self, session: aiohttp.ClientSession, resume: bool = True) -> None:
        self._session, self._patience = session, PATIENCE if resume else -1.0
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def ask(self, request: Request) -> Answer:
        """Raises StreamError for anything but a whole stream."""
        answer, streamed = Answer(request, self.now()), StreamedAnswer()
        text = ""

        def on_event(event: Event) -> None:
            nonlocal text
            if streamed.choices:
                choice = streamed.choices[0]
                answer.tokens = choice.token_ids or answer.tokens + [NO_ID] * (choice.text != text)
                answer.times += [self.now()] * (len(answer.tokens) - len(answer.times))
                text = choice.text

        sent = request.http()
        await follow(self._session, sent.path, sent.body, streamed, on_event, patience=self._patience)
        streamed.check(usage=False)
        answer.chunks = streamed.chunks
        if NO_ID in answer.tokens or not answer.tokens:
            # tokens without a text of their own came with the last event at the latest
            more = (streamed.completion_tokens or 0) - len(answer.tokens)
            answer.tokens = answer.tokens + [NO_ID] * more
            answer.times += (answer.times[-1:] or [self.now()]) * more
        return answer
