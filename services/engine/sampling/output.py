"""What samplers give: tokens by the number of their request, and by its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.engine.batch.request_state import RequestState
from services.messages import Logprobs
from services.requests import NO_TOKEN_LEFT


@dataclass(slots=True)
class SamplerOutput:
    """Tokens and requested log probabilities by request id; `failed` says why a request has none."""

    tokens: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each request, in order. A token means nothing where the request is not sound or nothing is
    possible."""

    tokens: list[int]
    sound: list[bool]  # whether the request's largest logit is finite
    possible: list[bool]  # whether its settings leave any token to choose
    logprobs: dict[int, Logprobs]  # of the requests that ask for them

    def by_id(self, states: Sequence[RequestState]) -> SamplerOutput:
        """The tokens by the ids of these requests, with a reason for each request that has none."""
        output = SamplerOutput()
        for i, state in enumerate(states):
            if not self.sound[i]:
                output.failed[state.id] = f"the model's logits at position {len(state.token_ids)} are not finite"
            elif state.grammar and state.grammar.error:
                output.failed[state.id] = state.grammar.error
            elif not self.possible[i]:
                output.failed[state.id] = NO_TOKEN_LEFT
            else:
                output.tokens[state.id] = self.tokens[i]
                if i in self.logprobs:
                    output.logprobs[state.id] = self.logprobs[i]
        return output
