"""Matcher: how far the output of one request has come in its grammar, and which tokens may follow."""

from __future__ import annotations

import re
from collections.abc import Iterable

import llguidance

from services.errors import GrammarError

LONGEST_LINE = 200  # characters of an error message


class Matcher:
    """A function of the grammar and the tokens consumed, so it can be made again from the output of a request."""

    __slots__ = ("_eos", "_matcher", "ended")

    def __init__(self, matcher: llguidance.LLMatcher, eos_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos = eos_token_ids
        self.ended = False  # whether an EOS token has been consumed

    @property
    def complete(self) -> bool:
        """Whether the output so far is a whole text of the grammar."""
        return self.ended or bool(self._matcher.is_accepting())

    def consume(self, tokens: Iterable[int]) -> None:
        """Take the next output tokens. Those after an EOS, which were drawn ahead, are ignored. Raises GrammarError if
        a token is not allowed, or if the work exceeds a limit."""
        for token in tokens:
            if self.ended:
                return
            if not self._matcher.consume_token(token):
                raise GrammarError(readable(self._matcher.get_error()))
            self.ended = token in self._eos

    def mask(self) -> bytes:
        """One bit for each id, the lowest first, in words of 32: whether the token may follow. Drops the GIL. Raises
        GrammarError if no token may, or if the work exceeds a limit."""
        mask: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(readable(self._matcher.get_error()))
        return mask

    def masks_after(self, tokens: list[int]) -> list[bytes]:
        """Return the mask after each of `tokens`, up to the first that may not follow or that ends the output. The
        matcher stays where it is."""
        masks: list[bytes] = []
        ahead = self._matcher.deep_copy()
        for token in tokens[: ahead.validate_tokens(tokens)]:
            if token in self._eos or not ahead.consume_token(token):
                break
            mask = ahead.compute_bitmask()
            if ahead.is_error():
                break
            masks.append(mask)
        return masks

    def forced(self) -> list[int]:
        """Return the tokens that follow because the grammar leaves no other; none if it leaves a choice."""
        return [] if self.ended else list(self._matcher.compute_ff_tokens())


def readable(error: str) -> str:
    """llguidance's message without its own state and stack traces."""
    text = re.split(r"\n?<(?:non-verbose|state|backtrace)\b", error, maxsplit=1)[0].strip()
    if text.startswith("NoExtension"):
        text = "no text of the grammar can go on with the tokens of the vocabulary"
    return "\n".join(line[:LONGEST_LINE] for line in text.splitlines())
