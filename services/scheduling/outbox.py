"""Outbox: what a scheduler has to commit with its next exchange."""

from __future__ import annotations

from services.messages import Commit
from services.scheduling.request_entry import RequestEntry


class Outbox:
    """The requests with new tokens or an end, in the order in which these came; and the requests of the last commits,
    because a pool that lost them asks for them again.
    """

    def __init__(self) -> None:
        self._uncommitted: dict[str, RequestEntry] = {}
        self._sent: dict[str, RequestEntry] = {}

    def __bool__(self) -> bool:
        return bool(self._uncommitted)

    def put(self, entry: RequestEntry) -> None:
        self._uncommitted[entry.id] = entry

    def take(self) -> list[Commit]:
        """Return one commit for each request with something new."""
        commits = [entry.take_commit() for entry in self._uncommitted.values()]
        self._sent, self._uncommitted = self._uncommitted, {}
        return commits

    def find(self, id: str) -> RequestEntry | None:
        return self._uncommitted.get(id) or self._sent.get(id)

    def drop(self, id: str) -> None:
        self._uncommitted.pop(id, None)
        self._sent.pop(id, None)

    def ids(self) -> list[str]:
        return list(self._sent | self._uncommitted)
