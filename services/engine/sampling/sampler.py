"""Sampler: one token for each request that is complete, by the request's own settings."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import repeat

import torch

from services.engine.batch.adjustments import Adjustments, AllowedTokens
from services.engine.batch.grammars import DraftMask, GrammarCompiler, OutputGrammar, allows
from services.engine.batch.request_state import RequestState
from services.engine.sampling import cpu_sampler
from services.engine.sampling.batched_sampler import BatchedSampler
from services.engine.sampling.output import Draw
from services.engine.sampling.search import CompiledSearch
from services.engine.sampling.truncation import MOST_TOKENS
from services.errors import ModelError
from services.started import finished


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
        self._batched = BatchedSampler()

    def draw(self, logits: torch.Tensor, states: list[RequestState], drafts: Sequence[list[int]] = ()) -> Draw:
        """A token for each row of `logits` [rows, vocab], the model's raw output in any dtype. Each request has a row,
        and one after each token of its draft. The tokens are those that are sampled one after another without
        `drafts`. The host does not wait for them unless they are sampled on a CPU by compiled functions.
        """
        rows: list[RequestState] = []
        first, verifiable = [], []
        for state, draft in zip(states, drafts or repeat([]), strict=bool(drafts)):
            if not state.unchanged:
                self.prepare(state)
            first.append(len(rows))
            rows.append(state)
            if draft:
                draft, ahead = self._ahead(state, draft)
                rows += ahead
            verifiable.append(draft)
        if self.search:
            return Draw(finished(cpu_sampler.sample(logits, rows, self.search).by_id(states, first, verifiable)))
        tokens, sampled = self._batched.start(logits, rows)
        return Draw(sampled.then(lambda one: one.by_id(states, first, verifiable)), tokens)

    def _ahead(self, state: RequestState, draft: list[int]) -> tuple[list[int], list[RequestState]]:
        """The part of the draft that the request's grammar allows, and the request as it will be after each token of
        the whole draft."""
        masks = None
        if isinstance(state.grammar, OutputGrammar):
            masks = state.grammar.masks_after(draft)
        rows = []
        for i, token in enumerate(draft):
            state = replace(
                state,
                token_ids=[*state.token_ids, token],
                adjustments=state.adjustments and state.adjustments.copy(),
                grammar=DraftMask(masks[i]) if masks and i < len(masks) else None,
                thinking=state.thinking and copy(state.thinking),
            )
            self._adjust(state)
            rows.append(state)
        return draft if masks is None else draft[: len(masks)], rows

    def begin(self, state: RequestState) -> None:
        """Start to compile the request's grammar, and to load what its thinking budget needs, where tokens are sampled.
        Its first token waits for it."""
        if not self._grammars:
            return
        if grammar := state.sampling.grammar:
            state.grammar = self._grammars.begin(grammar, state.token_ids, state.num_prompt_tokens)
        if budget := state.sampling.thinking_token_budget:
            state.thinking = self._grammars.begin_thinking(budget, state.num_prompt_tokens)

    def prepare(self, state: RequestState) -> None:
        """Set what the request's settings change in the logits after its last token."""
        if (state.sampling.grammar and not state.grammar) or (
            state.sampling.thinking_token_budget and not state.thinking
        ):
            self.begin(state)
        if state.sampling.grammar:
            assert isinstance(state.grammar, OutputGrammar), "this sampler compiles no grammars"
            state.grammar.advance(state.token_ids)
        assert state.thinking or not state.sampling.thinking_token_budget, "this sampler knows no texts of tokens"
        self._adjust(state)

    def _adjust(self, state: RequestState) -> None:
        """Give the request adjustments and allowed tokens if its settings change logits, and update them. Where its
        thinking budget forces a token, no setting but the grammar can forbid it: then the thinking goes on."""
        sampling = state.sampling
        if state.thinking:
            forced = state.thinking.forced(state.token_ids)
            if forced is not None and allows(state.mask, forced):
                state.allowed = AllowedTokens((forced,), self._vocab_size)
                state.adjustments = None
                return
            if state.allowed and len(state.allowed.ids) == 1:  # the last token may have been forced
                state.allowed = None
        if sampling.allowed_token_ids and state.allowed is None:
            state.allowed = AllowedTokens(sampling.allowed_token_ids, self._vocab_size)
        if Adjustments.needed(sampling, state.num_output_tokens):
            if state.adjustments is None:
                state.adjustments = Adjustments(sampling, self._eos, self._vocab_size)
            state.adjustments.update(state.token_ids, state.num_prompt_tokens, state.unknown)
        else:
            state.adjustments = None
