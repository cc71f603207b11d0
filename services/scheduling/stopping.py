"""StopChecker: decides after each output token whether it ends its request, and why.

Cancellations and failures end a request at once; the scheduler itself writes these ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.messages import End
from services.requests import FinishReason, SamplingParams
from services.text import StopMatcher, TextTables


@dataclass(frozen=True, slots=True)
class StopRules:
    """What of the model decides when a request ends."""

    max_model_len: int
    eos_token_ids: frozenset[int]
    text: TextTables | None  # None if no request has stop strings or visible stop tokens


class StopChecker:
    """Checks the output of one request. It must get each output token once, in order."""

    __slots__ = ("_eos", "_first_end", "_include_stop", "_matcher", "_stop_ids", "_text", "max_output_tokens")

    def __init__(self, rules: StopRules, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        assert sampling.max_new_tokens > 0, f"{sampling.max_new_tokens = }"
        self.max_output_tokens = min(sampling.max_new_tokens, rules.max_model_len - num_prompt_tokens)
        """The number of output tokens at which the request ends by length."""
        self._text = rules.text.of(sampling.skip_special_tokens) if rules.text else None
        self._include_stop = sampling.include_stop
        self._eos: frozenset[int] = frozenset() if sampling.ignore_eos else rules.eos_token_ids
        self._stop_ids = self._eos.union(sampling.stop_token_ids)
        self._matcher: StopMatcher | None = None
        if sampling.stop:
            assert self._text is not None, f"a scheduler without text got {sampling.stop = }"
            self._matcher = StopMatcher(self._text, sampling.stop)
        self._first_end = sampling.min_tokens + 1

    def check_stop(self, token: int, count: int) -> End | None:
        """Return the end that `token`, which is output token number `count` (from 1), causes; None if the request
        continues.

        A token that is both a stop and the last one allowed ends by `stop`. EOS takes precedence over a stop token id.
        """
        if token in self._stop_ids and count >= self._first_end:
            cut = 0 if self._include_stop or self._text is None else len(self._text.bytes_of(token))
            return End(FinishReason.STOP, None if token in self._eos else token, cut)
        if self._matcher is not None:
            match = self._matcher.push(token)
            if match is not None and count >= self._first_end:
                return End(FinishReason.STOP, match.stop, match.behind if self._include_stop else match.cut)
        return End(FinishReason.LENGTH) if count >= self.max_output_tokens else None
