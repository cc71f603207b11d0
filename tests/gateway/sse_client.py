"""A client of streams that can disconnect and resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    id = None
    for line in response.iter_lines():
        if line.startswith("id: "):
            id = line[4:]
        elif line.startswith("data: "):
            yield Event(id, line[6:])
            id = None


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
