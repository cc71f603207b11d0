"""Matcher: how far the output of one request has come in its grammar, and which tokens may follow."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from services.errors import GrammarError


class Matcher:
    """A function of the grammar and the tokens consumed, so it can be made again from the output of a request."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    @property
    def ended(self) -> bool:
        """Whether nothing but an end may follow, or EOS has been consumed."""
        return bool(self._matcher.is_stopped())

    @property
    def complete(self) -> bool:
        """Whether the output so far is a whole text of the grammar."""
        return bool(self._matcher.is_accepting())

    def consume(self, tokens: Sequence[int]) -> None:
        """Take the next output tokens. Raises GrammarError if one is not allowed, or if the work exceeds a limit."""
        if not self._matcher.consume_tokens(list(tokens)):
            raise GrammarError(self._matcher.get_error())

    def mask(self) -> bytes:
        """One bit for each id, the lowest first: whether the token may follow. Drops the GIL. Raises GrammarError if
        the work exceeds a limit."""
        mask: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())
        return mask
