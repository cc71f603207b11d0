"""NativeSearch: the vocabulary looked through by compiled functions, for many draws at once."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from services.engine import contenders
from services.engine.blocks import Blocks, Floats, Ids
from services.engine.contenders import NUCLEUS, Contenders, Draws
from services.engine.truncation import WHOLE, Truncation
from services.requests import SamplingParams

ERROR = 1e-5  # of a weight, see kernels/search.h

# Draw in kernels/search.h
DRAW = np.dtype(
    [
        ("logits", np.uintp),
        ("maxima", np.uintp),
        ("key", np.int64),
        ("best", np.float32),
        ("temperature", np.float32),
        ("lowest", np.float32),
        ("top_k", np.int32),
    ]
)

Told = np.ndarray[tuple[int], np.dtype[np.void]]


class NativeSearch:
    """Not thread-safe. Both calls are for one request at least."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._library, self._threads = library, threads
        self._finds = ctypes.c_void_p(library.orca_new_finds())
        weakref.finalize(self, library.orca_delete_finds, self._finds)

    def contenders(self, draws: Draws) -> Contenders:
        """See Search."""
        limits = draws.limits
        found = self._contenders(draws, np.where(limits.alone, -NUCLEUS, limits.lowest))
        nuclei, alone = np.flatnonzero(limits.top_p < 1.0), np.flatnonzero(limits.alone)
        if not len(nuclei):
            return found
        weights = self._weigh(draws.some(alone)).tolist() if len(alone) else []
        wholes = dict(zip(alone.tolist(), weights, strict=True))
        starts = np.cumsum(found.counts)[:-1]
        parts = list(zip(np.split(found.ids, starts), np.split(found.scores, starts), strict=True))
        for n in nuclei.tolist():
            parts[n] = _nucleus(draws, n, *parts[n], wholes.get(n))
        return contenders.together(parts, draws.keys)

    def log_sums(self, logits: Floats, maxima: Floats, requests: Ids) -> list[float]:
        """See Search."""
        plain = Truncation.of([SamplingParams(1)] * len(requests), logits.shape[1])
        sums = self._weigh(Draws(logits, maxima, requests, plain, np.zeros(len(requests), np.int64)))
        whole: list[float] = (maxima.max(axis=1)[requests] + np.log(sums)).tolist()
        return whole

    def _contenders(self, draws: Draws, lowest: Floats) -> Contenders:
        """What top_k and these lowest scores leave."""
        told, counts = self._told(draws, lowest), np.empty(len(draws.requests), np.int64)
        self._library.orca_search(self._finds, _at(told), *self._sizes(draws), _at(counts))
        ids, scores = np.empty(counts.sum(), np.int64), np.empty(counts.sum(), np.float32)
        self._library.orca_found(self._finds, _at(ids), _at(scores))
        return Contenders(counts, ids, scores, draws.keys)

    def _weigh(self, draws: Draws) -> npt.NDArray[np.float64]:
        """The sums of e^score."""
        told, sums = self._told(draws, draws.limits.lowest), np.empty(len(draws.requests), np.float64)
        self._library.orca_weigh(_at(told), *self._sizes(draws), _at(sums))
        return sums

    def _sizes(self, draws: Draws) -> tuple[int, int, int, int]:
        count = len(draws.requests)
        return count, draws.logits.shape[1], draws.maxima.shape[1], min(self._threads, count)

    def _told(self, draws: Draws, lowest: Floats) -> Told:
        told = np.empty(len(draws.requests), DRAW)
        told["logits"] = _address(draws.logits) + draws.requests * draws.logits.strides[0]
        told["maxima"] = _address(draws.maxima) + draws.requests * draws.maxima.strides[0]
        told["key"], told["best"] = draws.keys, draws.maxima.max(axis=1)[draws.requests]
        told["temperature"], told["lowest"], told["top_k"] = draws.limits.temperature, lowest, draws.limits.top_k
        return told


def _nucleus(draws: Draws, n: int, ids: Ids, scores: Floats, whole: float | None) -> tuple[Ids, Floats]:
    """What top_p keeps of these, which are all that min_p and top_k leave; or, where it is alone, likely enough to have
    what it keeps among them, of what all weigh."""
    limits, i = draws.limits.one(n), draws.requests[n]
    bounds = None
    if whole is not None:
        bounds = (int(whole * WHOLE * (1.0 - ERROR)), int(whole * WHOLE * (1.0 + ERROR)))
    found = contenders.nucleus(ids, scores, limits.top_p, bounds)
    return found or contenders.find(Blocks(draws.logits[i], draws.maxima[i]), limits, draws.keys[n])


def _address(array: Floats) -> int:
    assert array.flags.c_contiguous, array.strides
    return int(array.ctypes.data)


def _at(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
