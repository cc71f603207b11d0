"""A client of streams that can disconnect and resume."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    id: str | None
    data: str

    def json(self) -> Any:
        return json.loads(self.data)


DONE = Event(None, "[DONE]")
RESUMABLE = {"Orca-Resumable": "true"}  # its events have ids


def events(response: httpx.Response) -> Iterator[Event]:
    """The events of a stream without comments."""
    return events_of(response.iter_lines())


def events_of(lines: Iterable[str]) -> Iterator[Event]:
    """The same, of the lines of a stream."""
    id = None
    for line in lines:
        if line.startswith("id: "):
            id = line[4:]
        elif line.startswith("data: "):
            yield Event(id, line[6:])
            id = None


def chunks(lines: Iterable[str]) -> list[Any]:
    """The chunks of a whole stream of a completion or chat completion, which ends with [DONE]."""
    *events, done = events_of(lines)
    assert done.data == DONE.data
    return [event.json() for event in events]


def completion_text(lines: Iterable[str]) -> str:
    """The text of a streamed completion with one choice."""
    return "".join(chunk["choices"][0]["text"] for chunk in chunks(lines))


def some(response: httpx.Response, count: int) -> list[Event]:
    """The first events of a stream."""
    return [event for _, event in zip(range(count), events(response), strict=False)]


def first(http: httpx.Client, path: str, body: dict[str, Any], count: int, **headers: str) -> list[Event]:
    """The first events of a stream; then the client disconnects."""
    with http.stream("POST", path, json=body | {"stream": True}, headers=with_dashes(headers)) as response:
        assert response.status_code == 200, response.read()
        return some(response, count)


def rest(http: httpx.Client, id: str, **headers: str) -> list[Event]:
    """The events after the event `id`, by GET."""
    path = f"/v1/streams/{id.partition(':')[0]}"
    return read(http.get(path, headers={"Last-Event-ID": id} | with_dashes(headers)))


def read(response: httpx.Response) -> list[Event]:
    assert response.status_code == 200, response.text
    return list(events(response))


def with_dashes(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
