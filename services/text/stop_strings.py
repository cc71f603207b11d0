"""StopMatcher: the scheduler's search for stop strings, on bytes, token by token.

A sequence ends at the first token that completes a stop string. If that token completes several, the match that
starts earliest wins; among equal starts the string listed first. The text ends where the match starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.text.token_bytes import TextTables


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Which string matched, and how many trailing bytes of the text so far to cut: from its start to the end."""

    stop: str
    cut: int

    @property
    def behind(self) -> int:
        """How many of those bytes follow the stop string."""
        return self.cut - len(self.stop.encode())


def encode_stops(stops: Iterable[str]) -> list[bytes]:
    """The stop strings as bytes; ValueError for one that is empty or no valid Unicode."""
    encoded = [stop.encode() for stop in stops]
    if not all(encoded):
        raise ValueError("a stop string is empty")
    return encoded


def earliest_match(text: bytes | bytearray, stops: Sequence[bytes], after: int) -> tuple[int, int] | None:
    """(start, index of the stop) of the earliest stop string in `text` that ends behind position `after`."""
    found = [
        (start, index)
        for index, stop in enumerate(stops)
        if (start := text.find(stop, max(0, after - len(stop) + 1))) >= 0
    ]
    return min(found, default=None)


class StopMatcher:
    """Feeds on the output tokens of one sequence; keeps no more bytes than the longest stop string has.

    Every token must be pushed, also those before `min_tokens`, whose matches the caller ignores: a match is reported
    only by the token that completes it. After a reclaim, push the tokens committed so far and ignore their matches.
    """

    def __init__(self, tables: TextTables, stops: Sequence[str]) -> None:
        self._tables = tables
        self._stops = list(stops)
        self._encoded = encode_stops(stops)
        self._keep = max(map(len, self._encoded), default=1) - 1
        self._tail = b""

    def push(self, token: int) -> StopMatch | None:
        """The stop string that `token` completes, if any. O(bytes of the token + longest stop) per stop string."""
        window = self._tail + self._tables.bytes_of(token)
        match = earliest_match(window, self._encoded, after=len(self._tail))
        self._tail = window[-self._keep :] if self._keep else b""
        if match is None:
            return None
        start, index = match
        return StopMatch(self._stops[index], len(window) - start)
