"""Detokenizer: turns output tokens into text that is final.

The text after k tokens depends on these k tokens only, and is a prefix of the text after k + 1 tokens. It is therefore
the same however tokens are grouped, and whichever gateway decodes them. Held back are the bytes of an incomplete
character, what may still become part of a stop string, and a stop token at the end. If the stop stays in the text, only
what follows a complete stop string is held back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from encodings.utf_8 import IncrementalDecoder as Utf8Decoder

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
        self._decoder = Utf8Decoder("replace")
        self._held = b""

    def push(self, tokens: Iterable[int]) -> str:
        """Return the text that became final with these tokens, which may be empty."""
        new = list(tokens)
        if not new:
            return ""
        data = self._tables.join(new)
        if not (self._stops or self._held or self._decoder.buffer or new[-1] in self._stop_token_ids):
            try:
                return data.decode()  # whole characters, of which nothing is held back
            except UnicodeDecodeError:
                pass
        self._held += data
        final = self._first_claimed(new[-1]) if self._matcher is None else self._end_of_stop(new, self._matcher)
        text = self._decoder.decode(self._held[:final])
        self._held = self._held[final:]
        return text

    def finish(self, cut: int = 0) -> str:
        """Return the rest of the text without its last `cut` bytes: a stop that is to be removed, and what
        follows it.
        """
        assert cut <= len(self._held), f"{cut = } bytes to cut, {len(self._held)} held"
        text = self._decoder.decode(self._held[: len(self._held) - cut], final=True)
        self._held = b""
        return text

    def _end_of_stop(self, new: list[int], matcher: StopMatcher) -> int:
        """Return the end of the stop string that the last token completes, if any. What follows it may be removed."""
        match = [matcher.push(token) for token in new][-1]
        return len(self._held) - (match.behind if match else 0)

    def _first_claimed(self, token: int) -> int:
        """Return the first held byte that may still be cut. `token` is the last token.

        A stop string that was complete before the last token did not end the sequence (`min_tokens`), so it is text. A
        stop string that the last token completes may end it, and another one may have begun.
        """
        last = len(self._held) - len(self._tables.bytes_of(token))
        match = earliest_match(self._held, self._stops, after=last)
        claimed = len(self._held) if match is None else match[0]
        if token in self._stop_token_ids:
            claimed = min(claimed, last)
        return min([claimed, *(_begun(self._held, stop) for stop in self._stops)])


def _begun(text: bytes, stop: bytes) -> int:
    """Return the start of the longest suffix of `text` that is a proper prefix of `stop`; `len(text)` if none is."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) if start < 0 else start
