"""Requests for vectors over a server that is hurt: their whole answer as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import orjson

from services.client.sse import Event, StreamedAnswer

TOKENS = [0]  # of a text: the output token that stands for its vector


async def read_vectors(
    response: aiohttp.ClientResponse, answer: StreamedAnswer, on_event: Callable[[Event], None]
) -> None:
    """Feed a whole answer to `answer`, as the events of a stream; the text of each choice is its vector in base64."""
    for event in as_events(orjson.loads(await response.read())):
        answer.feed(event)
        on_event(event)


def as_events(made: dict[str, Any]) -> Iterator[Event]:
    """The events of a stream that brings these vectors: a token and the end of each text."""
    found = sorted(made["data"], key=lambda one: one["index"])
    choices = [
        {"index": one["index"], "text": one["embedding"], "token_ids": TOKENS, "finish_reason": "stop"} for one in found
    ]
    counts = ".".join([str(len(TOKENS) + 1)] * len(choices))
    yield Event(orjson.dumps({"choices": choices, "usage": made["usage"]}).decode(), f"{made['id']}:{counts}")
    yield Event("[DONE]")
