"""Requests for vectors over a server that is hurt: their whole answer as the events of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import orjson

from services.client.resuming import ResumableRequest
from services.client.sse import Event, StreamedAnswer

TOKENS = [0]  # of a text: the output token that stands for its vector


async def ask(
    session: aiohttp.ClientSession,
    path: str,
    body: dict[str, Any],
    answer: StreamedAnswer,
    on_event: Callable[[Event], None],
    on_connect: Callable[[str], None],
    patience: float,
    headers: Mapping[str, str] | None = None,
) -> ResumableRequest:
    """POST `body` again, under one key, until it is answered; the text of each choice is then the vector in base64.

    See `services.client.streaming.follow` for the arguments and errors.
    """
    resumable = ResumableRequest(answer, patience)
    while not answer.done:
        on_connect("")
        try:
            async with session.post(path, json=body, headers={**(headers or {}), **resumable.headers()}) as response:
                data = await response.read()
                if response.status == 200:
                    pause = 0.0
                    for event in as_events(orjson.loads(data)):
                        answer.feed(event)
                        on_event(event)
                else:
                    pause = resumable.refused(response.status, response.headers.get("Retry-After"), data)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            pause = resumable.broken(f"the connection broke: {error!r}")
        await asyncio.sleep(pause)
    return resumable


def as_events(made: dict[str, Any]) -> Iterator[Event]:
    """The events of a stream that brings these vectors: a token and the end of each text."""
    found = sorted(made["data"], key=lambda one: one["index"])
    choices = [
        {"index": one["index"], "text": one["embedding"], "token_ids": TOKENS, "finish_reason": "stop"} for one in found
    ]
    counts = ".".join([str(len(TOKENS) + 1)] * len(choices))
    yield Event(orjson.dumps({"choices": choices, "usage": made["usage"]}).decode(), f"{made['id']}:{counts}")
    yield Event("[DONE]")
