"""What has come for one HTTP request and is not yet written: the events of its sequences, each index once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from services.messages import Snapshot, TokenEvent


class Inbox:
    """Events of a group in order per sequence, from index 0 on, whatever the reader hands over.

    Token i of a sequence has index i; its end comes under the index after its last token.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self.next = dict.fromkeys(ids, 0)  # the index to come, per sequence that has not ended
        self.submitted = False  # the pool knows the sequences: if later it does not, they are lost
        self.arrived = 0.0  # when the latest events came, seconds on the loop's clock
        self._events: list[TokenEvent] = []
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    @property
    def open(self) -> bool:
        """A sequence has not ended yet."""
        return bool(self.next)

    def put(self, event: TokenEvent, now: float) -> bool:
        """Take an event unless it came before. False: events before it are missing, it was not taken."""
        expected = self.next.get(event.id)
        if expected is None or event.index < expected:
            return True
        if event.index > expected:
            return False
        if event.end is None:
            self.next[event.id] = expected + 1
        else:
            del self.next[event.id]
        self._events.append(event)
        self.arrived = now
        self._wake.set()
        return True

    def catch_up(self, snapshot: Snapshot, now: float) -> None:
        """Take what a snapshot has beyond what came before."""
        index, logprobs = snapshot.index, snapshot.logprobs
        for i, token in enumerate(snapshot.tokens):
            self.put(TokenEvent(snapshot.id, index + i, token, logprobs[i] if logprobs else None), now)
        if snapshot.end is not None:
            self.put(TokenEvent(snapshot.id, index + len(snapshot.tokens), None, end=snapshot.end), now)

    def fail(self, error: Exception) -> None:
        """Nothing more will come: `take` raises `error` once it has given what is there."""
        self._error = self._error or error
        self._wake.set()

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """All that has come: at least one event, or none at the loop's time `until`. Raises what `fail` was given."""
        if not self._events:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._arrival()
        events, self._events = self._events, []
        return events

    async def _arrival(self) -> None:
        while not self._events:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()
