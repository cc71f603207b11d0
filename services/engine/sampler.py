"""One token for each request that reached the end of its input, each by its own settings."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from services.engine import batch_choice, lone_choice
from services.engine.adjustments import Adjustments
from services.engine.allowed import Allowed
from services.engine.contenders import PlainSearch, Search
from services.engine.rows import Row
from services.engine.truncation import MOST_TOKENS
from services.errors import ModelError
from services.messages import Logprobs
from services.requests import NO_TOKEN_LEFT


@dataclass(slots=True)
class Sampled:
    """Tokens and asked log probabilities by request id; in `failed` why a request got none."""

    tokens: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Sampler:
    """Draws tokens. A request's token depends on its own logits, tokens and settings alone, never on the batch.

    It is the one with the largest score + Gumbel noise among those that its settings leave, the lower id if two are
    equal; its score is (logit - largest logit) / temperature, after bias and penalties.
    """

    def __init__(self, eos_token_ids: frozenset[int], vocab_size: int, search: Search | None = None) -> None:
        """`search` is for logits on a CPU. Raises ModelError where there are too many tokens."""
        if vocab_size > MOST_TOKENS:
            raise ModelError(f"a vocabulary has at most {MOST_TOKENS:,} tokens, this one {vocab_size:,}")
        self._eos = eos_token_ids
        self._vocab_size = vocab_size
        self.search = search or PlainSearch()

    def sample(self, logits: torch.Tensor, rows: list[Row]) -> Sampled:
        """A token for each row of `logits` [requests, vocab], the model's raw output in any dtype."""
        for row in rows:
            self._adjust(row)
        on_cpu = logits.device.type == "cpu"
        choice = lone_choice.choose(logits, rows, self.search) if on_cpu else batch_choice.choose(logits, rows)
        result = Sampled()
        for i, row in enumerate(rows):
            if not choice.sound[i]:
                result.failed[row.id] = f"the model's logits at position {len(row.token_ids)} are not finite"
            elif not choice.possible[i]:
                result.failed[row.id] = NO_TOKEN_LEFT
            else:
                result.tokens[row.id] = choice.tokens[i]
                if i in choice.logprobs:
                    result.logprobs[row.id] = choice.logprobs[i]
        return result

    def _adjust(self, row: Row) -> None:
        """See that it has its adjustments and allowed tokens, if its logits are to be changed."""
        s = row.sampling
        penalties = s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0
        if s.allowed_token_ids and row.allowed is None:
            row.allowed = Allowed(s.allowed_token_ids, self._vocab_size)
        if penalties or s.logit_bias or s.bad_words or row.num_output_tokens < s.min_tokens:
            if row.adjustments is None:
                row.adjustments = Adjustments(s, self._eos, self._vocab_size)
            row.adjustments.take(row.token_ids, row.num_prompt_tokens)
        else:
            row.adjustments = None
