"""What samplers give: tokens by the number of their request, and by its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from services.engine.batch.request_state import RequestState
from services.messages import Logprobs
from services.requests import NO_TOKEN_LEFT
from services.started import Started


@dataclass(slots=True)
class SamplerOutput:
    """Tokens and requested log probabilities by request id; `failed` says why a request has none. `more` are the
    tokens after the first of requests whose drafts were right (see IterationResult)."""

    tokens: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    more: dict[str, list[int]] = field(default_factory=dict)
    more_logprobs: dict[str, list[Logprobs]] = field(default_factory=dict)

    def drop(self, id: str) -> None:
        """Leave out a request."""
        for of in (self.tokens, self.logprobs, self.failed, self.more, self.more_logprobs):
            of.pop(id, None)


@dataclass(frozen=True, slots=True)
class Draw:
    """What a sampler was started for. `tokens` are those of all rows, int64, on the device of the logits, behind the
    work that makes them; None if the output is here."""

    output: Started[SamplerOutput]
    tokens: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each row of logits, in order. A token means nothing where the row is not sound or nothing is
    possible."""

    tokens: list[int]
    sound: list[bool]  # whether the row's largest logit is finite
    possible: list[bool]  # whether its request's settings leave any token to choose
    logprobs: dict[int, Logprobs]  # of the rows of requests that ask for them

    def by_id(self, states: Sequence[RequestState], rows: Sequence[int], drafts: Sequence[list[int]]) -> SamplerOutput:
        """The tokens by the ids of these requests, with a reason for each request that has none. `rows` are the first
        rows of the requests; rows after the tokens of their `drafts` follow."""
        output = SamplerOutput()
        for state, i, draft in zip(states, rows, drafts, strict=True):
            if not self.sound[i]:
                output.failed[state.id] = f"the model's logits at position {len(state.token_ids)} are not finite"
            elif state.error:
                output.failed[state.id] = state.error
            elif not self.possible[i]:
                output.failed[state.id] = NO_TOKEN_LEFT
            else:
                output.tokens[state.id] = self.tokens[i]
                if i in self.logprobs:
                    output.logprobs[state.id] = self.logprobs[i]
                if right := self._count_right(i, draft):
                    after = range(i + 1, i + 1 + right)
                    output.more[state.id] = [self.tokens[j] for j in after]
                    if i in self.logprobs:
                        output.more_logprobs[state.id] = [self.logprobs[j] for j in after]
        return output

    def _count_right(self, row: int, draft: list[int]) -> int:
        """How many tokens of a draft are those that are sampled, with a token after each of them. `row` is the one
        before the draft."""
        for i, token in enumerate(draft):
            after = row + i + 1
            if self.tokens[after - 1] != token or not (self.sound[after] and self.possible[after]):
                return i
        return len(draft)
