"""Streams from a running server, with asyncio; a stream whose connection breaks is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from services.client.resuming import PATIENCE, SILENCE, ResumableRequest
from services.client.sse import Event, Events, StreamedAnswer


def open_session(url: str, key: str | None = None) -> aiohttp.ClientSession:
    """A session for any number of streams of any length, which all send the API key `key`."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers)


Read = Callable[[aiohttp.ClientResponse, StreamedAnswer, Callable[[Event], None]], Awaitable[None]]


async def read_stream(
    response: aiohttp.ClientResponse, answer: StreamedAnswer, on_event: Callable[[Event], None]
) -> None:
    """Feed the events of a response to `answer`, up to `[DONE]`."""
    events, rest = Events(), b""
    async for data in response.content.iter_any():  # all that has arrived; to wait for each line takes far longer
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            event = events.feed(line)
            if event is not None:
                try:
                    answer.feed(event)
                finally:
                    on_event(event)
                if answer.done:
                    return


async def follow(
    session: aiohttp.ClientSession,
    path: str,
    body: dict[str, Any],
    answer: StreamedAnswer,
    on_event: Callable[[Event], None] = lambda event: None,
    on_connect: Callable[[str], None] = lambda last_id: None,
    patience: float = PATIENCE,
    headers: Mapping[str, str] | None = None,
    read: Read = read_stream,
) -> ResumableRequest:
    """POST `body` with `headers` and fill `answer` up to its `[DONE]`, over any number of connections. `read` reads a
    response.

    `on_connect` is called before each connection with the id of the event after which to continue, `on_event` with each
    event after `answer` accepted or refused it. Raises StreamError for an error from the server, for a stream that does
    not continue where it stopped, and after `patience` seconds without a sign of life.
    """
    resumable = ResumableRequest(answer, patience)
    while not answer.done:
        on_connect(answer.last_id)
        try:
            async with session.post(path, json=body, headers={**(headers or {}), **resumable.headers()}) as response:
                if response.status == 200:
                    await read(response, answer, on_event)
                    pause = 0.0 if answer.done else resumable.broken("the stream ended without [DONE]")
                else:
                    after = response.headers.get("Retry-After")
                    pause = resumable.refused(response.status, after, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            pause = resumable.broken(f"the connection broke: {error!r}")
        await asyncio.sleep(pause)
    return resumable
