"""Judge: has a request ended with this token, and why? Nobody else decides that.

Cancellation and failure come from outside and end a request at once; the scheduler writes those ends itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.messages import End
from services.requests import FinishReason, SamplingParams


class StopMatch(Protocol):
    """The stop string found, and how many trailing bytes of the text so far it and what follows it take."""

    @property
    def stop(self) -> str: ...
    @property
    def cut(self) -> int: ...


class Matcher(Protocol):
    """Looks for one request's stop strings in the text of the tokens pushed so far."""

    def push(self, token: int) -> StopMatch | None: ...


def _no_matcher(stops: tuple[str, ...]) -> Matcher:
    raise ValueError(f"stop strings need the model's tokenizer, got {stops = }")


def _no_text(token: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Rules:
    """What judging needs of the model: its ends, and text where a request asks for stop strings or token ids.

    `matcher` makes the matcher of a request from its stop strings; `text_bytes` says how many bytes of visible text
    a token gives (0 for special tokens).
    """

    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()
    matcher: Callable[[tuple[str, ...]], Matcher] = _no_matcher
    text_bytes: Callable[[int], int] = _no_text


class Judge:
    """Judges one request, told each of its output tokens once, in order."""

    __slots__ = ("_eos", "_first_end", "_matcher", "_rules", "_stop_ids", "last")

    def __init__(self, rules: Rules, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        assert sampling.max_new_tokens > 0, f"{sampling.max_new_tokens = }"
        self.last = min(sampling.max_new_tokens, rules.max_model_len - num_prompt_tokens)
        """The number of output tokens at which the request ends by length."""
        self._rules = rules
        self._eos = frozenset() if sampling.ignore_eos else rules.eos_token_ids
        self._stop_ids = self._eos.union(sampling.stop_token_ids)
        self._matcher = rules.matcher(sampling.stop) if sampling.stop else None
        self._first_end = sampling.min_tokens + 1

    def __call__(self, token: int, count: int) -> End | None:
        """The end that `token`, output token number `count` (from 1), brings; None: the request goes on.

        A token that is both EOS and the last one allowed ends by `stop`; EOS goes before a stop token id.
        """
        if token in self._stop_ids and count >= self._first_end:
            if token in self._eos:
                return End(FinishReason.STOP, cut=self._rules.text_bytes(token))
            return End(FinishReason.STOP, stop=token, cut=self._rules.text_bytes(token))
        if self._matcher is not None:
            match = self._matcher.push(token)
            if match is not None and count >= self._first_end:
                return End(FinishReason.STOP, stop=match.stop, cut=match.cut)
        return End(FinishReason.LENGTH) if count >= self.last else None
