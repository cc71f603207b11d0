"""Outbox: what the pool is still to be told, and what it may ask for again."""

from __future__ import annotations

from services.messages import Commit
from services.scheduling.request_entry import Entry


class Outbox:
    """Requests with tokens or ends since the last commits, in the order these came about; and those of the last
    commits, which a pool that lost its tail wants again."""

    def __init__(self) -> None:
        self._uncommitted: dict[str, Entry] = {}
        self._sent: dict[str, Entry] = {}

    def __bool__(self) -> bool:
        return bool(self._uncommitted)

    def put(self, entry: Entry) -> None:
        self._uncommitted[entry.id] = entry

    def take(self) -> list[Commit]:
        """One commit a request."""
        commits = [entry.take_commit() for entry in self._uncommitted.values()]
        self._sent, self._uncommitted = self._uncommitted, {}
        return commits

    def find(self, id: str) -> Entry | None:
        return self._uncommitted.get(id) or self._sent.get(id)

    def drop(self, id: str) -> None:
        self._uncommitted.pop(id, None)
        self._sent.pop(id, None)

    def ids(self) -> list[str]:
        return list(self._sent | self._uncommitted)
