"""Allowed: the only tokens that may be sampled for a request."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from services.engine.blocks import Floats
from services.engine.transfer import send


class Allowed:
    """Made once for a request: `ids` [allowed], int64, distinct and sorted."""

    __slots__ = ("_forbidden", "ids")

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = np.unique(np.array(list(ids), np.int64))
        self._forbidden: torch.Tensor | None = None

    def forbidden(self, vocab_size: int, device: torch.device) -> torch.Tensor:
        """[vocab], bool: all other ids. It stays on the device for the next iterations."""
        if self._forbidden is None:
            (ids,) = send([self.ids], device)
            self._forbidden = torch.ones(vocab_size, dtype=torch.bool, device=device).index_fill_(0, ids, False)
        return self._forbidden

    def limit(self, logits: Floats) -> Floats:
        """Rule out all other ids in `logits` [vocab], in place. Returns what `logits` were."""
        before = logits.copy()
        logits.fill(-np.inf)
        logits[self.ids] = before[self.ids]
        return before
