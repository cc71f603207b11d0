"""Watcher: the queue of one reader of the live feed, which loses batches if it is slow."""

from __future__ import annotations

import asyncio
from collections import deque

import orjson

MOST_BATCHES = 64  # that wait for a reader: 5 s of one engine
MOST_BYTES = 4 << 20


class Watcher:
    """Takes server-sent events for a reader of `tenant`. Of events that replace each other it keeps the last one."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.ended = False
        self._batches: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0  # batches that were dropped since the reader last took any
        self._state = b""
        self._fresh = asyncio.Event()

    def put(self, batch: bytes) -> None:
        """Add an event. The oldest ones are dropped if there are too many."""
        self._batches.append(batch)
        self._bytes += len(batch)
        while len(self._batches) > MOST_BATCHES or (self._bytes > MOST_BYTES and len(self._batches) > 1):
            self._bytes -= len(self._batches.popleft())
            self._lost += 1
        self._fresh.set()

    def put_state(self, state: bytes) -> None:
        """Add an event that replaces the one before, if that was not taken."""
        self._state = state
        self._fresh.set()

    def end(self) -> None:
        """End the feed once the reader has taken what waits."""
        self.ended = True
        self._fresh.set()

    async def take(self) -> bytes:
        """Return the events that wait, at least one; nothing if the feed has ended."""
        await self._fresh.wait()
        if not self.ended:
            self._fresh.clear()
        lost = event("lost", orjson.dumps({"batches": self._lost})) if self._lost else b""
        taken = b"".join((lost, *self._batches, self._state))
        self._batches.clear()
        self._bytes = self._lost = 0
        self._state = b""
        return taken


def event(name: str, data: bytes) -> bytes:
    """A server-sent event. `data` is JSON, which has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
