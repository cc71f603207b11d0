"""A trace over HTTP: each request as a stream from a running server, timed as its user sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import aiohttp

from load.trace import Answer, Request, Run, run_trace
from services.client.sse import Event, StreamedAnswer
from services.client.streaming import follow, open_session


async def run_over_http(url: str, requests: Sequence[Request]) -> Run:
    """Run `requests` on the server at `url`. Raises StreamError for a stream that is not whole."""
    async with open_session(url) as session:
        return Run(await run_trace(OverHttp(session), requests))


class OverHttp:
    """A server as the system that answers requests; the trace begins when this is created."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def ask(self, request: Request) -> Answer:
        """Raises StreamError for anything but a whole stream."""
        answer, streamed = Answer(request, self.now()), StreamedAnswer()

        def on_event(event: Event) -> None:
            if streamed.choices:
                answer.tokens = streamed.choices[0].token_ids
                answer.times += [self.now()] * (len(answer.tokens) - len(answer.times))

        sent = request.http()
        await follow(self._session, sent.path, sent.body, streamed, on_event)
        streamed.check(usage=False)
        answer.chunks = streamed.chunks
        return answer
