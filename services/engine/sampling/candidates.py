"""Candidates: the tokens that can win a draw, found among a request's largest logits (CPU).

`Search` has two implementations: numpy here, compiled in `backends/cpu/search.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from services.engine.sampling.grammars import Words
from services.engine.sampling.logits_chunks import Floats, Ids, LogitsChunks, chunk_maxima, kth_largest
from services.engine.sampling.noise import gumbel_of, ids_with_large_noise
from services.engine.sampling.truncation import Limits, Truncation, weigh

NEAR = np.float32(8.0)  # scores above -NEAR are drawn from first, for a bound that all others must reach
NUCLEUS = np.float32(10.0)  # top_p is looked for among scores above -NUCLEUS first; only flat distributions need all
MARGIN = np.float32(1e-3)  # how far a floor is below the score it is for, so that rounding does not matter


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws at temperatures above 0 from the logits of some requests."""

    logits: Floats  # [requests, vocab]
    maxima: Floats  # [requests, chunks]
    requests: Ids  # [draws], the request of each draw
    limits: Truncation  # [draws]
    keys: Ids  # [draws], of their noise


@dataclass(frozen=True, slots=True)
class Candidates:
    """The winner of each draw is among its candidates, which are ordered by id."""

    counts: Ids  # [draws], how many each has
    ids: Ids  # of all draws, one after another
    scores: Floats


class Search(Protocol):
    """Finds tokens in the logits of requests on a CPU."""

    def candidates(self, draws: Draws) -> Candidates:
        """Those of all draws."""
        ...

    def log_sums(self, logits: Floats, maxima: Floats, requests: Ids) -> npt.NDArray[np.float64]:
        """log(sum(exp(logits))) of each of these requests."""
        ...

    def likeliest(self, logits: Floats, maxima: Floats, requests: Ids, count: int) -> Ids:
        """The tokens [requests, count] with the largest logits of each of these requests, in descending order; of equal
        ones the lower id comes first."""
        ...

    def masked(self, logits: Floats, requests: Ids, masks: Words) -> tuple[Floats, Floats]:
        """The logits [requests, vocab] of these requests, -inf for tokens without a bit in `masks` [requests, words];
        and the maxima of their chunks."""
        ...


class PlainSearch:
    """Search by numpy and torch."""

    def candidates(self, draws: Draws) -> Candidates:
        """See Search."""
        found = [
            find(LogitsChunks(draws.logits[i], draws.maxima[i]), draws.limits.one(n), draws.keys[n])
            for n, i in enumerate(draws.requests)
        ]
        ids, scores = ([one[part] for one in found] for part in (0, 1))
        counts = np.array([len(one) for one in ids], np.int64)
        return Candidates(counts, np.concatenate(ids), np.concatenate(scores))

    def log_sums(self, logits: Floats, maxima: Floats, requests: Ids) -> npt.NDArray[np.float64]:
        """See Search."""
        return np.array([LogitsChunks(logits[i], maxima[i]).log_sum_exp() for i in requests])

    def likeliest(self, logits: Floats, maxima: Floats, requests: Ids, count: int) -> Ids:
        """See Search."""
        return np.stack([LogitsChunks(logits[i], maxima[i]).likeliest(count) for i in requests])

    def masked(self, logits: Floats, requests: Ids, masks: Words) -> tuple[Floats, Floats]:
        """See Search."""
        bits = np.unpackbits(masks.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
        limited = np.where(bits.view(np.bool_), logits[requests], np.float32(-math.inf))
        return limited, chunk_maxima(torch.from_numpy(limited)).numpy()


def find(row: LogitsChunks, limits: Limits, key: np.int64) -> tuple[Ids, Floats]:
    """The candidates of one draw and their scores."""
    return _near_or_lucky(row, limits, key) if limits.none else _kept(row, limits)


def _near_or_lucky(row: LogitsChunks, limits: Limits, key: np.int64) -> tuple[Ids, Floats]:
    """The tokens near the likeliest, and those whose noise is large enough to beat the best of these."""
    floor = _logit(row, limits, -NEAR)
    near = row.above(floor)
    noise = gumbel_of(key, near)
    best = (row.score(row.logits[near], limits.temperature) + noise).max()
    # noise is at most -log of its uniform, and the scores of all others are at most the floor's
    share = math.exp(min(0.0, float(row.score(floor, limits.temperature) - best + MARGIN)))
    ids = np.sort(np.concatenate([near, ids_with_large_noise(key, len(row.logits), share)]))
    return ids, row.score(row.logits[ids], limits.temperature)


def _kept(row: LogitsChunks, limits: Limits) -> tuple[Ids, Floats]:
    """The tokens that min_p, top_k and top_p keep."""
    for floor in (_floor(row, limits), np.float32(-math.inf)):
        ids = row.above(floor)
        scores = row.score(row.logits.take(ids), limits.temperature)
        limit = _lowest(row, scores, row.score(floor, limits.temperature), limits)
        if limit is not None:
            break
    stay = (scores >= limit).nonzero()[0]
    return ids.take(stay), scores.take(stay)


def _floor(row: LogitsChunks, limits: Limits) -> np.float32:
    """A logit that is most likely below all that are kept."""
    nearest = limits.lowest
    if limits.top_k:
        nearest = max(nearest, row.score(row.kth_bound(limits.top_k), limits.temperature))
    return _logit(row, limits, (nearest if nearest > -math.inf else -NUCLEUS) - MARGIN)


def _logit(row: LogitsChunks, limits: Limits, score: np.float32) -> np.float32:
    """A logit of about this score, below the largest."""
    return min(row.best + score * limits.temperature, np.nextafter(row.best, np.float32(-math.inf)))


def _lowest(row: LogitsChunks, scores: Floats, outside: np.float32, limits: Limits) -> np.float32 | None:
    """The lowest score that is kept, given these scores and that all others are at most `outside`; None if `scores` are
    too few to know."""
    lowest = limits.lowest
    if 0 < limits.top_k <= len(scores):
        lowest = max(lowest, kth_largest(scores, limits.top_k))
    every = outside == -math.inf
    known = every or lowest > outside  # whether `scores` has all that min_p and top_k keep
    if limits.top_p < 1.0 and (known or not limits.narrow):
        left = np.sort(scores[scores >= lowest])[::-1].copy()
        held = np.cumsum(weigh(left))
        reached = _reached(held, limits.top_p, int(held[-1]) if known else row.weight(limits.temperature))
        if reached == len(left):
            return None
        lowest = left[reached]
    return lowest if every or lowest > outside else None


def _reached(held: Ids, top_p: float, whole: int) -> int:
    """The index of the first of these ascending sums that is at least this share of the whole; their number if none
    is."""
    return int(np.searchsorted(held, int(top_p * float(whole))))
