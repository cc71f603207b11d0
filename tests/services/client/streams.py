"""Streams as Orca writes them: the chunks, ids and events of an answer."""

from __future__ import annotations

import json
from typing import Any

from services.client.sse import Event


def chunk(index: int = 0, text: str = "", tokens: list[int] | None = None, reason: str | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": reason}
    return {"choices": [choice if tokens is None else choice | {"token_ids": tokens}]}


def chunks_of(
    request: str, choices: list[list[int]], start: list[int] | None = None
) -> list[tuple[dict[str, Any], str]]:
    """Chunks of one token and their ids, for an answer from `start` on, choices in turn; the text is the token ids."""
    said = list(start or [0] * len(choices))
    events = [(chunk(0, "", []), _id(request, said))]
    for at in range(max(len(tokens) for tokens in choices) + 1):
        for index, tokens in enumerate(choices):
            if said[index] == at <= len(tokens):
                said[index] += 1
                if at < len(tokens):
                    events.append((chunk(index, f"{tokens[at]} ", [tokens[at]]), _id(request, said)))
                else:
                    events.append((chunk(index, "", [], "length"), _id(request, said)))
    return events


def _id(request: str, said: list[int]) -> str:
    return f"{request}:{'.'.join(map(str, said))}"


def events(chunks: list[tuple[dict[str, Any], str]]) -> list[Event]:
    return [Event(json.dumps(chunk), id) for chunk, id in chunks] + [Event("[DONE]")]
