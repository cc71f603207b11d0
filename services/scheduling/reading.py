"""Reading: requests that wait until the engine has read their adapter, while others run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from services.scheduling.request_entry import RequestEntry

AT_ONCE = 4  # adapters that an engine reads ahead, each of up to a gigabyte
LONGEST = 10.0  # seconds that a request waits here: then the iteration that it enters waits for the engine


class Reading:
    """The requests whose adapter the engine does not have in memory yet, as far as results have told."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a clock, in seconds."""
        self._now = now
        self._waiting: list[tuple[RequestEntry, float]] = []  # until when each waits at most
        self._taken: list[RequestEntry] = []  # those that the engine may not know yet
        self._there: set[str] = set()  # digests

    def __iter__(self) -> Iterator[RequestEntry]:
        return (entry for entry, _ in self._waiting if not entry.removed)

    def hold(self, entry: RequestEntry) -> bool:
        """Let a new request wait, if its adapter has to be read. One that must run alone delays nobody."""
        if not entry.adapter or entry.adapter in self._there or entry.suspect:
            return False
        self._waiting.append((entry, self._now() + LONGEST))
        return True

    def wanted(self) -> list[str]:
        """The digests of the adapters that the engine should read now, or keep: a request that was taken may still wait
        for a place, or for blocks."""
        self._taken = [entry for entry in self._taken if not entry.removed and entry.num_blocks_sent < 0]
        kept = dict.fromkeys(entry.adapter for entry in self._taken)
        read = dict.fromkeys(entry.adapter for entry in self if entry.adapter not in kept)
        return [*kept, *islice(read, AT_ONCE)]

    def arrived(self, digests: Iterable[str]) -> None:
        """Note which adapters the engine has."""
        self._there = set(digests)

    def take(self, all: bool) -> list[RequestEntry]:
        """The requests that need not wait any more, in the order in which they came. `all`: nobody would be delayed."""
        now = self._now()
        entries = [(e, all or until <= now or e.adapter in self._there) for e, until in self._waiting if not e.removed]
        taken = [entry for entry, enters in entries if enters]
        self._waiting = [each for each in self._waiting if not (each[0].removed or each[0] in taken)]
        self._taken += taken
        self._there.update(entry.adapter for entry in taken)
        return taken
