"""Streams from a running server, timed as its user sees them; they come back by themselves when a connection breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from load.resuming import PATIENCE, SILENCE, Comeback
from load.sse import Answer, Event, Events
from load.workloads import Job


def open_session(url: str, key: str | None = None) -> aiohttp.ClientSession:
    """For any number of streams of any length; `key`: the API key of all of them."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers)


async def follow(
    session: aiohttp.ClientSession,
    path: str,
    body: dict[str, Any],
    answer: Answer,
    on_event: Callable[[Event], None] = lambda event: None,
    on_connect: Callable[[str], None] = lambda last_id: None,
    patience: float = PATIENCE,
    headers: Mapping[str, str] | None = None,
) -> Comeback:
    """POST `body` with `headers` and fill `answer` to its `[DONE]`, over as many connections as it takes.

    `on_connect` is told the id of the event to go on after, `on_event` each event once `answer` took or refused it.
    Raises StreamError for an error of the server's, for a stream that does not go on where it stopped, and after
    `patience` seconds without a sign of life.
    """
    comeback = Comeback(answer, patience)
    while not answer.done:
        on_connect(answer.last_id)
        try:
            async with session.post(path, json=body, headers={**(headers or {}), **comeback.headers()}) as response:
                if response.status == 200:
                    await _read(response, answer, on_event)
                    pause = 0.0 if answer.done else comeback.broken("the stream ended without [DONE]")
                else:
                    after = response.headers.get("Retry-After")
                    pause = comeback.refused(response.status, after, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            pause = comeback.broken(f"the connection broke: {error!r}")
        await asyncio.sleep(pause)
    return comeback


async def _read(response: aiohttp.ClientResponse, answer: Answer, on_event: Callable[[Event], None]) -> None:
    events = Events()
    async for line in response.content:
        event = events.feed(line)
        if event is not None:
            try:
                answer.feed(event)
            finally:
                on_event(event)
            if answer.done:
                return


@dataclass(slots=True)
class Stream:
    """What came of one job; times in seconds from the moment it was sent."""

    answer: Answer = field(default_factory=Answer)
    first_token: float = 0.0
    end: float = 0.0

    @property
    def token_ids(self) -> list[int]:
        return self.answer.choices[0].token_ids


async def stream(session: aiohttp.ClientSession, job: Job) -> Stream:
    """Run `job` greedily with EOS ignored. Raises StreamError for anything but a whole stream."""
    body = {
        "prompt": job.prompt,
        "max_tokens": job.max_new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    got, began = Stream(), time.perf_counter()

    def arrived(event: Event) -> None:
        if not got.first_token and got.token_ids:
            got.first_token = time.perf_counter() - began

    await follow(session, "/v1/completions", body, got.answer, arrived)
    got.end = time.perf_counter() - began
    got.answer.check(usage=False)
    return got


async def run_trace(url: str, jobs: list[Job]) -> tuple[float, list[Stream]]:
    """All jobs at once: seconds until the last has ended, and their streams."""
    async with open_session(url) as session:
        began = time.perf_counter()
        streams = await asyncio.gather(*(stream(session, job) for job in jobs))
        return time.perf_counter() - began, list(streams)
