"""Contenders: the tokens that can win a draw, found among a request's largest logits (for CPUs)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.engine.sampling.logits_chunks import Blocks, Floats, Ids, kth
from services.engine.sampling.noise import gumbel_of, lucky
from services.engine.sampling.truncation import Limits, Truncation, weigh

NEAR = np.float32(8.0)  # scores above -NEAR are drawn from first, for a bound of what all others must reach
NUCLEUS = np.float32(10.0)  # top_p is sought among scores above -NUCLEUS first; only flat distributions need all
MARGIN = np.float32(1e-3)  # what a floor is lower than the score it is for, so that rounding does not matter


@dataclass(frozen=True, slots=True)
class Draws:
    """At temperatures above 0, from the logits of some requests; of each draw its request, settings and the key of its
    noise."""

    logits: Floats  # [requests, vocab]
    maxima: Floats  # [requests, blocks]
    requests: Ids  # [draws]
    limits: Truncation
    keys: Ids  # [draws]


@dataclass(frozen=True, slots=True)
class Contenders:
    """The winner of each draw is among its own, which are in the order of their ids."""

    counts: Ids  # [draws], how many each has
    ids: Ids  # of all draws, one after the other
    scores: Floats


class Search(Protocol):
    """How the vocabulary is looked through."""

    def contenders(self, draws: Draws) -> Contenders:
        """Those of all draws."""
        ...

    def log_sums(self, logits: Floats, maxima: Floats, requests: Ids) -> npt.NDArray[np.float64]:
        """Of these requests the logarithm of the sum of all exponentials."""
        ...

    def likeliest(self, logits: Floats, maxima: Floats, requests: Ids, count: int) -> Ids:
        """Of these requests the ids [requests, count] of the largest logits, these falling; lower ids first among
        equals."""
        ...


class PlainSearch:
    """By numpy and torch."""

    def contenders(self, draws: Draws) -> Contenders:
        """See Search."""
        found = [
            find(Blocks(draws.logits[i], draws.maxima[i]), draws.limits.one(n), draws.keys[n])
            for n, i in enumerate(draws.requests)
        ]
        ids, scores = ([one[part] for one in found] for part in (0, 1))
        counts = np.array([len(one) for one in ids], np.int64)
        return Contenders(counts, np.concatenate(ids), np.concatenate(scores))

    def log_sums(self, logits: Floats, maxima: Floats, requests: Ids) -> npt.NDArray[np.float64]:
        """See Search."""
        return np.array([Blocks(logits[i], maxima[i]).log_sum() for i in requests])

    def likeliest(self, logits: Floats, maxima: Floats, requests: Ids, count: int) -> Ids:
        """See Search."""
        return np.stack([Blocks(logits[i], maxima[i]).largest(count) for i in requests])


def find(row: Blocks, limits: Limits, key: np.int64) -> tuple[Ids, Floats]:
    """The ids and scores of one draw."""
    return _lucky(row, limits, key) if limits.none else _kept(row, limits)


def _lucky(row: Blocks, limits: Limits, key: np.int64) -> tuple[Ids, Floats]:
    """Those near the likeliest, and those whose noise is large enough to beat the best of these."""
    floor = _logit(row, limits, -NEAR)
    near = row.above(floor)
    noise = gumbel_of(key, near)
    best = (row.score(row.logits[near], limits.temperature) + noise).max()
    # noise is at most -log of its uniform, and the scores of all others are at most the floor's
    share = math.exp(min(0.0, float(row.score(floor, limits.temperature) - best + MARGIN)))
    ids = np.sort(np.concatenate([near, lucky(key, len(row.logits), share)]))
    return ids, row.score(row.logits[ids], limits.temperature)


def _kept(row: Blocks, limits: Limits) -> tuple[Ids, Floats]:
    """Those that min_p, top_k and top_p keep."""
    for floor in (_floor(row, limits), np.float32(-math.inf)):
        ids = row.above(floor)
        scores = row.score(row.logits.take(ids), limits.temperature)
        limit = _lowest(row, scores, row.score(floor, limits.temperature), limits)
        if limit is not None:
            break
    stay = (scores >= limit).nonzero()[0]
    return ids.take(stay), scores.take(stay)


def _floor(row: Blocks, limits: Limits) -> np.float32:
    """A logit; what is kept is most likely above it."""
    nearest = limits.lowest
    if limits.top_k:
        nearest = max(nearest, row.score(row.kth(limits.top_k), limits.temperature))
    return _logit(row, limits, (nearest if nearest > -math.inf else -NUCLEUS) - MARGIN)


def _logit(row: Blocks, limits: Limits, score: np.float32) -> np.float32:
    """One of about this score, below the largest."""
    return min(row.best + score * limits.temperature, np.nextafter(row.best, np.float32(-math.inf)))


def _lowest(row: Blocks, scores: Floats, outside: np.float32, limits: Limits) -> np.float32 | None:
    """The lowest score that is kept, of these and of the others, which are at most `outside`; None if these are too few
    to tell."""
    lowest = limits.lowest
    if 0 < limits.top_k <= len(scores):
        lowest = max(lowest, kth(scores, limits.top_k))
    every = outside == -math.inf
    known = every or lowest > outside  # all that min_p and top_k leave
    if limits.top_p < 1.0 and (known or not limits.narrow):
        left = np.sort(scores[scores >= lowest])[::-1].copy()
        held = np.cumsum(weigh(left))
        reached = _reached(held, limits.top_p, int(held[-1]) if known else row.weight(limits.temperature))
        if reached == len(left):
            return None
        lowest = left[reached]
    return lowest if every or lowest > outside else None


def _reached(held: Ids, top_p: float, whole: int) -> int:
    """The place in these growing sums at which this share of the whole is reached; behind them, if it is not."""
    return int(np.searchsorted(held, int(top_p * float(whole))))
