"""What `orca top` knows of a server: its `/ui/feed`, read over any number of connections, and the last iterations."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from cli.server import not_answering
from services.client.sse import Event, Events
from services.errors import OrcaError

PATH = "/ui/feed"
MOST_COLUMNS = 400  # iterations that are kept of an engine
FORGOTTEN = 32  # iterations after which a request that no longer runs gives its row away: its end may have been lost
RETRY = 1.0  # seconds
SILENCE = 10.0  # seconds without an event after which the connection is taken for broken

Cell = tuple[int, str]  # the number of a request, and what is computed of it: see `services/live/frames.py`
Column = dict[int, Cell]  # an iteration: cells by row


@dataclass(slots=True)
class EngineView:
    """The last iterations of an engine. A request has one row from its first iteration to its end."""

    epoch: str = ""
    columns: deque[Column | None] = field(default_factory=lambda: deque(maxlen=MOST_COLUMNS))  # None: a new owner
    _rows: dict[int, int] = field(default_factory=dict)  # of the requests, by their numbers
    _seen: dict[int, int] = field(default_factory=dict)  # in which iteration each of them ran last
    _count: int = 0

    def add(self, data: dict[str, Any]) -> None:
        """Add the iterations of one event."""
        if data["epoch"] != self.epoch:
            if self.epoch:
                self.columns.append(None)
            self.epoch = data["epoch"]
            self._rows.clear()
            self._seen.clear()
        for iteration in data["iterations"]:
            self._add(iteration)

    def _add(self, iteration: dict[str, Any]) -> None:
        self._count += 1
        column: Column = {}
        for n, _, kind in iteration["requests"]:
            column[self._row(n)] = n, kind
            self._seen[n] = self._count
        self.columns.append(column)
        gone = {n for n, _ in iteration["ended"]} | {*iteration["preempted"]}
        for n in [n for n in self._rows if n in gone or self._count - self._seen[n] > FORGOTTEN]:
            del self._rows[n], self._seen[n]

    def _row(self, n: int) -> int:
        if n not in self._rows:
            taken = {*self._rows.values()}
            self._rows[n] = next(row for row in range(len(taken) + 1) if row not in taken)
        return self._rows[n]


@dataclass(slots=True)
class LiveView:
    """All that came so far. `state` is the last `state` event; empty before the first."""

    state: dict[str, Any] = field(default_factory=dict)
    engines: dict[str, EngineView] = field(default_factory=dict)
    lost: int = 0  # events that the server dropped because this reader was slow
    broken: str = ""  # why there is no connection; empty while there is one

    def feed(self, event: Event) -> None:
        """Add an event. Raises OrcaError for one that is not what the feed sends."""
        self.broken = ""
        try:
            data = orjson.loads(event.data)
            match event.name:
                case "state":
                    self.state = data
                case "iterations":
                    self.engines.setdefault(data["engine"], EngineView()).add(data)
                case "lost":
                    self.lost += data["batches"]
        except (ValueError, KeyError, TypeError) as error:
            raise OrcaError(f"not an event of the live feed ({error!r}): {event.data[:200]}") from None


async def follow(client: httpx.AsyncClient, view: LiveView) -> AsyncIterator[str]:
    """Fill `view` from the feed; gives the name of each event. A connection that breaks is opened again.

    Raises OrcaError if the server refuses, or if it does not answer the first time.
    """
    connected = False
    while True:
        try:
            async with client.stream("GET", PATH, timeout=httpx.Timeout(SILENCE, connect=5.0)) as response:
                if response.is_success:
                    connected = True
                    async for event in _events(response):
                        view.feed(event)
                        yield event.name
                    view.broken = "the feed has ended"
                elif response.status_code < 500 and response.status_code != 429:
                    raise OrcaError(not_answering(client.base_url, response))
                else:
                    view.broken = f"the server answers {response.status_code}"
        except httpx.HTTPError as error:
            if not connected:
                raise OrcaError(not_answering(client.base_url, error)) from error
            view.broken = f"the connection broke: {error!r}"
        yield ""
        await asyncio.sleep(RETRY)


async def _events(response: httpx.Response) -> AsyncIterator[Event]:
    events = Events()
    async for line in response.aiter_lines():
        if (event := events.feed(line.encode())) is not None:
            yield event
