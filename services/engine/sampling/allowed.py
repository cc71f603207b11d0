"""Allowed: the only tokens that may be sampled for a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from services.engine.batch.transfer import send
from services.engine.sampling.logits_chunks import Floats, width


class Allowed:
    """What is the same in all iterations of a request is made once."""

    __slots__ = ("_blocks", "_forbidden", "_ids", "_starts", "_vocab_size")

    def __init__(self, ids: Iterable[int], vocab_size: int) -> None:
        self._ids = np.unique(np.array(list(ids), np.int64))
        self._blocks, self._starts = np.unique(self._ids // width(vocab_size), return_index=True)
        self._vocab_size = vocab_size
        self._forbidden: torch.Tensor | None = None

    def forbidden(self, device: torch.device) -> torch.Tensor:
        """[vocab], bool: all other ids. It stays on the device."""
        if self._forbidden is None:
            (ids,) = send([self._ids], device)
            self._forbidden = torch.ones(self._vocab_size, dtype=torch.bool, device=device).index_fill_(0, ids, False)
        return self._forbidden

    def copy(self, logits: Floats, to: Floats, maxima: Floats) -> None:
        """Copy the allowed ones of `logits` [vocab]; and tell the largest of each block [blocks] that has any."""
        values = logits.take(self._ids)
        to[self._ids] = values
        maxima[self._blocks] = np.maximum.reduceat(values, self._starts)


def only_allowed(logits: Floats, which: Sequence[tuple[int, Allowed]]) -> tuple[Floats, Floats]:
    """New logits [which, vocab] of these rows of `logits` with their allowed tokens, all others ruled out; and the
    largest of each block."""
    vocab_size = logits.shape[1]
    limited = np.full((len(which), vocab_size), -np.inf, np.float32)
    maxima = np.full((len(which), vocab_size // width(vocab_size)), -np.inf, np.float32)
    for place, (i, allowed) in enumerate(which):
        allowed.copy(logits[i], limited[place], maxima[place])
    return limited, maxima
