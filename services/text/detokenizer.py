"""Detokenizer: tokens in, final text out.

The text given out after k tokens is a function of those k tokens alone, and a prefix of the text after k + 1:
however tokens are grouped into pushes, and whichever gateway decodes them, the same text comes out. Held back are
bytes of an unfinished character, whatever a stop string may still claim, and a stop token that came last. Where the
stop stays in the text, only what follows a complete stop string is held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from services.text.stop_strings import StopMatcher, earliest_match, encode_stops
from services.text.token_bytes import TextTables


class Detokenizer:
    """Decodes the output of one sequence. Invalid bytes become U+FFFD, as in `bytes.decode(errors="replace")`."""

    def __init__(
        self,
        tables: TextTables,
        stops: Sequence[str] = (),
        stop_token_ids: Collection[int] = (),
        include_stop: bool = False,
    ) -> None:
        self._tables = tables
        self._stops = encode_stops(stops)
        self._stop_token_ids = stop_token_ids
        self._matcher = StopMatcher(tables, stops) if include_stop else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""

    def push(self, tokens: Iterable[int]) -> str:
        """The text that became final by these tokens; may be empty."""
        new = list(tokens)
        if not new:
            return ""
        self._held += self._tables.join(new)
        final = self._first_claimed(new[-1]) if self._matcher is None else self._end_of_stop(new, self._matcher)
        text = self._decoder.decode(self._held[:final])
        self._held = self._held[final:]
        return text

    def finish(self, cut: int = 0) -> str:
        """The rest of the text without its last `cut` bytes: a stop that is not to stay in it, and what follows."""
        assert cut <= len(self._held), f"{cut = } bytes to cut, {len(self._held)} held"
        text = self._decoder.decode(self._held[: len(self._held) - cut], final=True)
        self._held = b""
        return text

    def _end_of_stop(self, new: list[int], matcher: StopMatcher) -> int:
        """Where the stop string ends that the last token completes, if any: what follows it goes if it counts."""
        match = [matcher.push(token) for token in new][-1]
        return len(self._held) - (match.behind if match else 0)

    def _first_claimed(self, token: int) -> int:
        """Where the held bytes may still be cut from; `token` came last.

        A stop string that was complete before the last token did not end the sequence (`min_tokens`), so it is text.
        One that the last token completes may be about to end it, and one may have begun without being complete.
        """
        last = len(self._held) - len(self._tables.bytes_of(token))
        match = earliest_match(self._held, self._stops, after=last)
        claimed = len(self._held) if match is None else match[0]
        if token in self._stop_token_ids:
            claimed = min(claimed, last)
        return min([claimed, *(_begun(self._held, stop) for stop in self._stops)])


def _begun(text: bytes, stop: bytes) -> int:
    """Where the longest end of `text` starts that `stop` starts with, short of all of `stop`; else the length."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) if start < 0 else start
