"""PromptScorer: log probabilities of prompts, from the logits after each of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.request_state import RequestState
from services.engine.decoder import Decoder
from services.engine.sampling import whole_rows
from services.engine.sampling.output import SamplerOutput
from services.engine.sampling.search import CompiledSearch
from services.engine.sampling.whole_rows import chunk_maxima

# Logits of prompt tokens that exist at once: 64 MiB in float32, on a GPU a few times that while they are scored. That
# is little beside weights and KV blocks, where a whole prompt could take more than both (32,768 tokens by a vocabulary
# of 151,936: 18 GiB). It is enough rows, 341 for a vocabulary of 49,152, that reading the vocabulary's weights once for
# each piece costs little beside multiplying by them.
AT_ONCE = 1 << 24


class Scored(NamedTuple):
    """Some tokens, each scored after the one before it. Where `sound` is false the other numbers mean nothing."""

    sound: npt.NDArray[np.bool_]  # [tokens], whether the largest logit is finite
    own: npt.NDArray[np.float64]  # [tokens], the token's log probability
    token_ranks: npt.NDArray[np.int64]  # [tokens], 1 + how many tokens are likelier
    ids: npt.NDArray[np.int64]  # [tokens, count], the likeliest tokens
    values: npt.NDArray[np.float64]  # [tokens, count], their log probabilities


class PromptScorer:
    """Fills `RequestState.prompt_scores` while prompts are computed, and delivers them with the first output token.

    Log probabilities are those of the raw logits, before temperature, bias and penalties.
    """

    def __init__(self, decoder: Decoder, vocab_size: int, search: CompiledSearch | None) -> None:
        """`search` is for logits on a CPU, where there are compiled functions."""
        self._decoder = decoder
        self._vocab_size = vocab_size
        self._search = search

    def score(self, batch: FlatBatch) -> None:
        """Score the prompt tokens that the last forward, of `batch`, computed. Overwrites that forward's logits.

        All ranks must call this; only the one that samples gets the scores.
        """
        asked = max(state.sampling.prompt_logprobs or 0 for state, _ in batch.scored_requests)
        pieces = list(self._pieces(batch, min(asked, self._vocab_size)))
        if not pieces:
            return
        whole, end = [np.concatenate(parts) for parts in zip(*pieces, strict=True)], 0
        for state, count in batch.scored_requests:
            begin, end = end, end + count
            _extend(state, Scored(*(each[begin:end] for each in whole)))

    def deliver(self, batch: FlatBatch, output: SamplerOutput) -> None:
        """Add the scores of complete prompts to the log probabilities of their first tokens.

        A prompt whose logits are not finite fails here and not when they are found: ranks learn from sampled tokens
        which requests have failed.
        """
        complete = {state.id for state in batch.sampled}
        for state, _ in batch.scored_requests:
            if state.id not in complete:
                continue
            scores, state.prompt_scores = state.prompt_scores, None
            assert scores is not None
            if state.id in output.tokens and scores.failed is None:
                output.logprobs[state.id] = replace(output.logprobs[state.id], prompt=scores.logprobs)
            elif state.id in output.tokens:
                del output.tokens[state.id], output.logprobs[state.id]
                output.failed[state.id] = scores.failed or ""

    def _pieces(self, batch: FlatBatch, count: int) -> Iterator[Scored]:
        """For at most `AT_ONCE` logits at a time."""
        rows = max(1, AT_ONCE // self._vocab_size)
        for begin in range(0, len(batch.scored_tokens), rows):
            logits = self._decoder.logits_after(batch.scored_tokens[begin : begin + rows])
            if logits is None:
                continue
            targets = batch.targets[begin : begin + rows]
            if self._search:
                yield score_on_cpu(logits, targets, count, self._search)
            else:
                yield score_batched(logits, targets, count)


def score_on_cpu(logits: torch.Tensor, targets: Numbers, count: int, search: CompiledSearch) -> Scored:
    """Scores of `targets` [tokens] by `logits` [tokens, vocab], with the `count` likeliest tokens of each. The
    arithmetic is the CPU sampler's."""
    maxima = chunk_maxima(logits).float().contiguous().numpy()
    numbers = logits.float().contiguous().numpy()
    sound = np.isfinite(maxima.max(axis=1))
    where = np.flatnonzero(sound)
    own, ranks = np.full(len(targets), np.nan), np.zeros(len(targets), np.int64)
    ids, values = np.zeros((len(targets), count), np.int64), np.full((len(targets), count), np.nan)
    if len(where):
        log_sums = search.log_sums(numbers, maxima, where)
        logit = numbers[where, targets[where]]
        own[where] = logit - log_sums
        ranks[where] = [1 + np.count_nonzero(numbers[i] > one) for i, one in zip(where, logit, strict=True)]
        ids[where] = search.likeliest(numbers, maxima, where, count)
        values[where] = numbers[where[:, None], ids[where]] - log_sums[:, None]
    return Scored(sound, own, ranks, ids, values)


def score_batched(logits: torch.Tensor, targets: Numbers, count: int) -> Scored:
    """The scores of `score_on_cpu` by operations on all rows at once, on any device. The host waits once."""
    raw = logits.float()
    mine = torch.from_numpy(targets).to(raw.device, torch.long)
    ranks = 1 + (raw > raw.gather(1, mine[:, None])).sum(dim=-1, keepdim=True)
    logs, ids = whole_rows.score(raw, mine, count)
    floats = torch.cat([raw.amax(dim=-1, keepdim=True).double(), logs], dim=1)
    results = torch.cat([floats.view(torch.int64), ranks, ids], dim=1).cpu().numpy()
    numbers, whole = np.ascontiguousarray(results[:, : count + 2]).view(np.float64), results[:, count + 2 :]
    return Scored(np.isfinite(numbers[:, 0]), numbers[:, 1], whole[:, 0], whole[:, 1:], numbers[:, 2:])


def _extend(state: RequestState, scored: Scored) -> None:
    """Add the next tokens of the request's prompt."""
    assert state.prompt_scores is not None
    known, count = state.prompt_scores.logprobs, state.sampling.prompt_logprobs or 0
    if state.prompt_scores.failed is None and not scored.sound.all():
        position = 1 + len(known.tokens) + int(scored.sound.argmin())
        state.prompt_scores.failed = f"the model's logits at position {position} are not finite"
    known.tokens.extend(scored.own.tolist())
    known.ranks.extend(scored.token_ranks.tolist())
    known.top_ids.extend(scored.ids[:, :count].ravel().tolist())
    known.top_logprobs.extend(scored.values[:, :count].ravel().tolist())
