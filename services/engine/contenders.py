"""Contenders: the tokens of one request that can win its draw, found among its largest logits (for CPUs)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from services.engine.blocks import Blocks, Floats, Ids, kth
from services.engine.noise import gumbel_of, lucky
from services.engine.truncation import Limits, weigh

NEAR = np.float32(8.0)  # scores above -NEAR are drawn from first, for a bound of what all others must reach
NUCLEUS = np.float32(10.0)  # top_p is sought among scores above -NUCLEUS first; only flat distributions need all
MARGIN = np.float32(1e-3)  # what a floor is lower than the score it is for, so that rounding does not matter


@dataclass(frozen=True, slots=True)
class Contenders:
    """The winner is among them; `ids` [tokens] in their order, `scores` [tokens], the key of the noise."""

    ids: Ids
    scores: Floats
    key: np.int64


def contenders(row: Blocks, limits: Limits, key: np.int64) -> Contenders:
    """Those of a draw, at a temperature above 0."""
    ids, scores = _lucky(row, limits, key) if limits.none else _kept(row, limits)
    return Contenders(ids, scores, key)


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
        left = np.sort(scores[scores >= lowest])[::-1]
        held = np.cumsum(weigh(left.copy()))
        whole = int(held[-1]) if known else row.weight(limits.temperature)
        reached = int(np.searchsorted(held, int(limits.top_p * float(whole))))
        if reached == len(held):
            return None
        lowest = left[reached]
    return lowest if every or lowest > outside else None
