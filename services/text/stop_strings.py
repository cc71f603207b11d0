"""StopMatcher: searches the output for stop strings, in bytes, token by token.

A sequence ends at the first token that completes a stop string. If that token completes several, the match that starts
first wins; if several start there, the string that is listed first. The text ends where the match starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.text.token_bytes import TextTables


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The stop string that matched, and the number of bytes from its start to the end of the text, which are cut."""

    stop: str
    cut: int

    @property
    def behind(self) -> int:
        """The number of bytes after the stop string."""
        return self.cut - len(self.stop.encode())


def encode_stops(stops: Iterable[str]) -> list[bytes]:
    """Return the stop strings as bytes. Raises ValueError if one is empty or not valid Unicode."""
    encoded = [stop.encode() for stop in stops]
    if not all(encoded):
        raise ValueError("a stop string is empty")
    return encoded


def earliest_match(text: bytes | bytearray, stops: Sequence[bytes], after: int) -> tuple[int, int] | None:
    """Return (start, index of the stop) of the first stop string in `text` that ends after position `after`."""
    found = [
        (start, index)
        for index, stop in enumerate(stops)
        if (start := text.find(stop, max(0, after - len(stop) + 1))) >= 0
    ]
    return min(found, default=None)


class StopMatcher:
    """Gets the output tokens of one sequence, and keeps fewer bytes than the longest stop string has.

    A match is reported only by the token that completes it. Every token must be pushed, including those before
    `min_tokens` and those that an earlier owner of the request committed, whose matches the caller ignores.
    """

    def __init__(self, tables: TextTables, stops: Sequence[str]) -> None:
        self._tables = tables
        self._stops = list(stops)
        self._encoded = encode_stops(stops)
        self._keep = max(map(len, self._encoded), default=1) - 1
        self._tail = b""

    def push(self, token: int) -> StopMatch | None:
        """Return the stop string that `token` completes, if any. Takes O(bytes of token and longest stop) per stop
        string.
        """
        window = self._tail + self._tables.bytes_of(token)
        match = earliest_match(window, self._encoded, after=len(self._tail))
        self._tail = window[-self._keep :] if self._keep else b""
        if match is None:
            return None
        start, index = match
        return StopMatch(self._stops[index], len(window) - start)
