"""Blocks: the logits of one request, and how to find its largest ones without looking at all (for CPUs)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.engine.truncation import WHOLE, weigh

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

WIDEST = 64  # ids of a block
SERIAL = 1 << 14  # numbers that torch does not split over threads, which wait long for each other on a busy machine


@cache
def width(vocab_size: int) -> int:
    """How many ids a block has: a divisor of the vocabulary."""
    return next(width for width in range(min(WIDEST, vocab_size), 0, -1) if vocab_size % width == 0)


def maxima(logits: torch.Tensor) -> torch.Tensor:
    """[requests, blocks] of `logits` [requests, vocab]; NaN where a block has one."""
    blocks: torch.Tensor = logits.unflatten(-1, (-1, width(logits.shape[-1])))
    return blocks.amax(dim=-1)


def kth(numbers: Floats, k: int) -> np.float32:
    """The k-th largest."""
    place, parted = len(numbers) - k, numbers.copy()
    parted.partition(place)  # np.partition does the same, a third slower for so few
    largest: np.float32 = parted[place]
    return largest


class Blocks:
    """Logits [vocab], none of them NaN, and the largest of each block. `best` is the largest of all."""

    __slots__ = ("best", "logits", "maxima")

    def __init__(self, logits: Floats, maxima: Floats) -> None:
        self.logits, self.maxima = logits, maxima
        self.best: np.float32 = maxima[maxima.argmax()]

    def above(self, floor: np.float32) -> Ids:
        """The ids with a logit above `floor`, in their order."""
        hit = (self.maxima > floor).nonzero()[0]
        if len(hit) > len(self.maxima) // 4:
            return np.flatnonzero(self.logits > floor)
        blocks = self.logits.reshape(len(self.maxima), -1)
        found = (blocks.take(hit, axis=0) > floor).ravel().nonzero()[0]
        skipped = (hit - np.arange(len(hit))) * blocks.shape[1]  # ids before each block that were not looked at
        return found + skipped.take(found // blocks.shape[1])

    def kth(self, k: int) -> np.float32:
        """A logit that at least k are as large as; the largest that the blocks alone tell."""
        return kth(self.maxima, k) if k <= len(self.maxima) else np.float32(-math.inf)

    def score(self, logits: Any, temperature: np.float32) -> Any:
        """The scores of logits: larger logits have larger or equal ones."""
        return (logits - self.best) / temperature

    def largest(self, k: int) -> Ids:
        """The ids of the k largest logits, these falling; lower ids first among equals."""
        ids = self.above(np.nextafter(self.kth(k), np.float32(-math.inf))) if k else np.zeros(0, np.int64)
        if len(ids) < k:
            ids = np.arange(len(self.logits))
        return ids[np.argsort(-self.logits[ids], kind="stable")[:k]]

    def weight(self, temperature: np.float32) -> int:
        """What all ids weigh, see `truncation.weigh`."""
        parts = (self.logits[begin : begin + SERIAL] for begin in range(0, len(self.logits), SERIAL))
        return sum(int(weigh(self.score(part, temperature)).sum()) for part in parts)

    def log_sum(self) -> float:
        """The logarithm of the sum of all exponentials."""
        return float(self.best) + math.log(self.weight(np.float32(1.0)) / WHOLE)
