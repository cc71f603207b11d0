"""The CPU sampler: one pass over all logits, then each request looks only among its own largest ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby, pairwise

import numpy as np
import torch

from services.engine.batch import adjustments
from services.engine.batch.adjustments import AllowedTokens
from services.engine.batch.request_state import RequestState
from services.engine.sampling.noise import gumbel_of, keys
from services.engine.sampling.output import SampledTokens
from services.engine.sampling.search import CompiledSearch, Draws, Floats, Ids
from services.engine.sampling.truncation import Truncation
from services.engine.sampling.whole_rows import CHUNK, chunk_maxima
from services.messages import Logprobs


def sample(logits: torch.Tensor, states: Sequence[RequestState], search: CompiledSearch) -> SampledTokens:
    """A token for each row of `logits` [requests, vocab], in any dtype. Requests have their adjustments."""
    maxima = chunk_maxima(logits).float().contiguous().numpy()
    sound: list[bool] = np.isfinite(maxima.max(axis=1)).tolist()
    sampled = SampledTokens([0] * len(states), sound, [True] * len(states), {})
    _take_likeliest(sampled, logits, maxima, {i: i for i, state in enumerate(states) if state.is_plain_greedy})
    special = [i for i, state in enumerate(states) if sound[i] and not state.is_plain_greedy]
    asking = [i for i, state in enumerate(states) if sound[i] and state.sampling.logprobs is not None]
    if not special and not asking:
        return sampled
    numbers = logits.float().contiguous().numpy()
    if special:
        with _adjusted(numbers, maxima, states, special) as changed:
            _sample_special(
                sampled, numbers, changed, states, {i: i for i in special if not states[i].is_limited}, search
            )
            _sample_limited(sampled, numbers, states, special, search)
    if asking:
        _add_logprobs(sampled, numbers, maxima, states, np.array(asking), search)
    return sampled


def _take_likeliest(sampled: SampledTokens, logits: torch.Tensor, maxima: Floats, rows: dict[int, int]) -> None:
    """The token with the largest logit for the request of each of these rows, the lowest id if several are equal."""
    if not rows:
        return
    which = list(rows)
    first = maxima[which].argmax(axis=1) * CHUNK
    ids = np.minimum(first[:, None] + np.arange(CHUNK), logits.shape[1] - 1)
    inside = logits[torch.tensor(which)[:, None], torch.from_numpy(ids)].argmax(dim=-1)
    for i, token in zip(rows.values(), (first + inside.numpy()).tolist(), strict=True):
        sampled.tokens[i] = token


@contextmanager
def _adjusted(numbers: Floats, maxima: Floats, states: Sequence[RequestState], special: list[int]) -> Iterator[Floats]:
    """Inside this context `numbers` are the logits with the adjustments of these requests. Yields the chunks'
    maxima."""
    changed = [i for i in special if states[i].adjustments]
    if not changed:
        yield maxima
        return
    changes = adjustments.gather([state.adjustments for state in states], numbers.shape[1])
    logits = torch.from_numpy(numbers)
    values = adjustments.adjusted(logits, *map(torch.from_numpy, (changes.index, changes.columns, changes.settings)))
    flat = numbers.reshape(-1)
    raw = flat[changes.index]
    try:
        flat[changes.index] = values.numpy()
        maxima = maxima.copy()
        for begin, end in _runs(changed):
            maxima[begin:end] = chunk_maxima(logits[begin:end]).numpy()
        yield maxima
    finally:
        flat[changes.index] = raw


def _runs(which: list[int]) -> Iterator[tuple[int, int]]:
    """The ranges of consecutive numbers."""
    for _, run in groupby(enumerate(which), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield numbers[0], numbers[-1] + 1


def _sample_special(
    sampled: SampledTokens,
    numbers: Floats,
    maxima: Floats,
    states: Sequence[RequestState],
    rows: dict[int, int],
    search: CompiledSearch,
) -> None:
    """Tokens of requests that draw, or have adjustments or allowed tokens; and whether any token is possible. `rows`:
    the request of each of these rows of the logits `numbers` [rows, vocab]."""
    for i, best in zip(rows.values(), maxima[list(rows)].max(axis=1).tolist(), strict=True):
        sampled.possible[i] = best > -math.inf
    greedy = {row: i for row, i in rows.items() if states[i].sampling.temperature <= 0.0}
    _take_likeliest(sampled, torch.from_numpy(numbers), maxima, greedy)
    drawing = {row: i for row, i in rows.items() if row not in greedy and sampled.possible[i]}
    if drawing:
        tokens = _draw(numbers, maxima, [states[i] for i in drawing.values()], np.array(list(drawing)), search)
        for i, token in zip(drawing.values(), tokens, strict=True):
            sampled.tokens[i] = token


def _sample_limited(
    sampled: SampledTokens, numbers: Floats, states: Sequence[RequestState], special: list[int], search: CompiledSearch
) -> None:
    """Tokens of requests with allowed tokens or with a mask, from logits that have only these tokens."""
    masked = [(i, mask) for i in special if (mask := states[i].mask) is not None]
    if masked:
        which = [i for i, _ in masked]
        own, maxima = search.masked(numbers, np.array(which), np.stack([mask for _, mask in masked]))
        both = [(place, allowed) for place, i in enumerate(which) if (allowed := states[i].allowed)]
        if both:
            places = [place for place, _ in both]
            own[places], maxima[places] = only_allowed(own, both)
        _sample_special(sampled, own, maxima, states, dict(enumerate(which)), search)
    allowed_only = [(i, allowed) for i in special if (allowed := states[i].allowed) and states[i].mask is None]
    if allowed_only:
        rows = dict(enumerate(i for i, _ in allowed_only))
        _sample_special(sampled, *only_allowed(numbers, allowed_only), states, rows, search)


def only_allowed(logits: Floats, which: Sequence[tuple[int, AllowedTokens]]) -> tuple[Floats, Floats]:
    """New logits [which, vocab] from these rows of `logits`, -inf for tokens that are not allowed; and the maxima of
    their chunks [which, chunks]."""
    vocab_size = logits.shape[1]
    limited = np.full((len(which), vocab_size), -np.inf, np.float32)
    maxima = np.full((len(which), -(-vocab_size // CHUNK)), -np.inf, np.float32)
    for place, (i, allowed) in enumerate(which):
        values, chunks = logits[i].take(allowed.ids), allowed.ids // CHUNK
        starts = np.flatnonzero(np.diff(chunks, prepend=-1))  # of each chunk that has any
        limited[place, allowed.ids] = values
        maxima[place, chunks[starts]] = np.maximum.reduceat(values, starts)
    return limited, maxima


def _draw(
    numbers: Floats, maxima: Floats, states: Sequence[RequestState], which: Ids, search: CompiledSearch
) -> list[int]:
    """For each draw the token with the largest score + noise."""
    settings = [state.sampling for state in states]
    noise_keys = keys(
        (s.seed for s in settings), (s.choice for s in settings), (len(state.token_ids) for state in states)
    )
    found = search.candidates(
        Draws(numbers, maxima, which, Truncation.from_params(settings, numbers.shape[1]), noise_keys)
    )
    scores = found.scores + gumbel_of(np.repeat(noise_keys, found.counts), found.ids)
    bounds = pairwise(accumulate(found.counts.tolist(), initial=0))
    winners: list[int] = found.ids.take([begin + int(scores[begin:end].argmax()) for begin, end in bounds]).tolist()
    return winners


def _add_logprobs(
    sampled: SampledTokens,
    numbers: Floats,
    maxima: Floats,
    states: Sequence[RequestState],
    asking: Ids,
    search: CompiledSearch,
) -> None:
    """Log probabilities of the raw logits, before temperature, bias and penalties; of equal ones the lower id first."""
    log_sums = search.log_sums(numbers, maxima, asking)
    counts = [min(states[i].sampling.logprobs or 0, numbers.shape[1]) for i in asking]
    ids = search.likeliest(numbers, maxima, asking, max(counts))
    values = numbers[asking[:, None], ids] - log_sums[:, None]
    own = numbers[asking, [sampled.tokens[i] for i in asking]] - log_sums
    for n, (i, count) in enumerate(zip(asking.tolist(), counts, strict=True)):
        top = list(zip(ids[n, :count].tolist(), values[n, :count].tolist(), strict=True))
        sampled.logprobs[i] = Logprobs(float(own[n]), top)
