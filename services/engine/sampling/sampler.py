"""Sampler: one token for each request that is complete, by the request's own settings."""

from __future__ import annotations

import torch

from services.engine.batch.adjustments import Adjustments, AllowedTokens
from services.engine.batch.grammars import GrammarCompiler
from services.engine.batch.request_state import RequestState
from services.engine.sampling import batched_sampler, cpu_sampler
from services.engine.sampling.output import SamplerOutput
from services.engine.sampling.search import CompiledSearch
from services.engine.sampling.truncation import MOST_TOKENS
from services.errors import ModelError


class Sampler:
    """A request's token depends on its own logits, tokens and settings, and never on the batch.

    It is the token with the largest score + Gumbel noise among those that the settings leave; of two equal ones the
    lower id. A score is (logit - largest logit) / temperature, after bias and penalties.
    """

    def __init__(
        self,
        eos_token_ids: frozenset[int],
        vocab_size: int,
        search: CompiledSearch | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`search` is for logits on a CPU, where there are compiled functions; without `grammars` no request may have
        one. Raises ModelError if the vocabulary is too large."""
        if vocab_size > MOST_TOKENS:
            raise ModelError(f"a vocabulary has at most {MOST_TOKENS:,} tokens, this one {vocab_size:,}")
        self._eos = eos_token_ids
        self._vocab_size = vocab_size
        self.search = search
        self._grammars = grammars

    def sample(self, logits: torch.Tensor, states: list[RequestState]) -> SamplerOutput:
        """A token for each row of `logits` [requests, vocab], the model's raw output in any dtype."""
        for state in states:
            self._adjust(state)
        if self.search:
            return cpu_sampler.sample(logits, states, self.search).by_id(states)
        return batched_sampler.sample(logits, states).by_id(states)

    def begin(self, state: RequestState) -> None:
        """Start to compile the request's grammar, where tokens are sampled. Its first token waits for it."""
        if self._grammars:
            state.grammar = self._grammars.begin(state.sampling.grammar, state.token_ids, state.num_prompt_tokens)

    def _adjust(self, state: RequestState) -> None:
        """Give the request adjustments, allowed tokens and a mask if its settings change logits, and update them."""
        sampling = state.sampling
        if sampling.allowed_token_ids and state.allowed is None:
            state.allowed = AllowedTokens(sampling.allowed_token_ids, self._vocab_size)
        if sampling.grammar:
            if state.grammar is None:
                self.begin(state)
            assert state.grammar, "this sampler compiles no grammars"
            state.grammar.advance(state.token_ids)
        if Adjustments.needed(sampling, state.num_output_tokens):
            if state.adjustments is None:
                state.adjustments = Adjustments(sampling, self._eos, self._vocab_size)
            state.adjustments.update(state.token_ids, state.num_prompt_tokens)
        else:
            state.adjustments = None
