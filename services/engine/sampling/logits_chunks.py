"""LogitsChunks: the logits of one request in chunks of equal size, whose maxima show where the largest logits are
(CPU)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.engine.sampling.truncation import WHOLE, weigh

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

LARGEST_CHUNK = 64  # tokens
SERIAL = 1 << 14  # numbers that torch does not split over threads, which wait long for each other on a busy machine


@cache
def chunk_size(vocab_size: int) -> int:
    """How many tokens a chunk has: a divisor of the vocabulary's size."""
    return next(size for size in range(min(LARGEST_CHUNK, vocab_size), 0, -1) if vocab_size % size == 0)


def chunk_maxima(logits: torch.Tensor) -> torch.Tensor:
    """[requests, chunks] of `logits` [requests, vocab]; NaN where a chunk has one."""
    chunks: torch.Tensor = logits.unflatten(-1, (-1, chunk_size(logits.shape[-1])))
    return chunks.amax(dim=-1)


def kth_largest(numbers: Floats, k: int) -> np.float32:
    place, parted = len(numbers) - k, numbers.copy()
    parted.partition(place)  # np.partition does the same and takes a third longer for so few
    largest: np.float32 = parted[place]
    return largest


class LogitsChunks:
    """Logits [vocab] without NaN, and the maxima of their chunks. `best` is the largest of all."""

    __slots__ = ("best", "logits", "maxima")

    def __init__(self, logits: Floats, maxima: Floats) -> None:
        self.logits, self.maxima = logits, maxima
        self.best: np.float32 = maxima[maxima.argmax()]

    def above(self, floor: np.float32) -> Ids:
        """The tokens whose logits are above `floor`, in ascending order."""
        hit = (self.maxima > floor).nonzero()[0]
        if len(hit) > len(self.maxima) // 4:
            return np.flatnonzero(self.logits > floor)
        chunks = self.logits.reshape(len(self.maxima), -1)
        found = (chunks.take(hit, axis=0) > floor).ravel().nonzero()[0]
        skipped = (hit - np.arange(len(hit))) * chunks.shape[1]  # tokens before each chunk that were not looked at
        return found + skipped.take(found // chunks.shape[1])

    def kth_bound(self, k: int) -> np.float32:
        """A lower bound of the k-th largest logit, from the maxima alone."""
        return kth_largest(self.maxima, k) if k <= len(self.maxima) else np.float32(-math.inf)

    def score(self, logits: Any, temperature: np.float32) -> Any:
        """The scores of logits, which are at most 0. A larger logit never has a smaller score."""
        return (logits - self.best) / temperature

    def likeliest(self, k: int) -> Ids:
        """The tokens with the k largest logits, in descending order; of equal ones the lower id comes first."""
        ids = self.above(np.nextafter(self.kth_bound(k), np.float32(-math.inf))) if k else np.zeros(0, np.int64)
        if len(ids) < k:
            ids = np.arange(len(self.logits))
        return ids[np.argsort(-self.logits[ids], kind="stable")[:k]]

    def weight(self, temperature: np.float32) -> int:
        """The sum of all tokens' weights, see `truncation.weigh`."""
        parts = (self.logits[begin : begin + SERIAL] for begin in range(0, len(self.logits), SERIAL))
        return sum(int(weigh(self.score(part, temperature)).sum()) for part in parts)

    def log_sum_exp(self) -> float:
        return float(self.best) + math.log(self.weight(np.float32(1.0)) / WHOLE)
