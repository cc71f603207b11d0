"""NativeSearch: the vocabulary looked through by compiled functions, for many draws at once."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from services.engine.sampling.candidates import Contenders, Draws
from services.engine.sampling.logits_chunks import Floats, Ids
from services.engine.sampling.truncation import WHOLE, Truncation
from services.requests import SamplingParams

# Draw in kernels/draws.h
DRAW = np.dtype(
    [
        ("logits", np.uintp),
        ("maxima", np.uintp),
        ("key", np.int64),
        ("top_p", np.float64),
        ("best", np.float32),
        ("temperature", np.float32),
        ("lowest", np.float32),
        ("top_k", np.int32),
    ]
)

Told = np.ndarray[tuple[int], np.dtype[np.void]]


class NativeSearch:
    """Not thread-safe. All calls are for one request at least."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._library, self._threads = library, threads
        self._finds = ctypes.c_void_p(library.orca_new_finds())
        weakref.finalize(self, library.orca_delete_finds, self._finds)

    def contenders(self, draws: Draws) -> Contenders:
        """See Search."""
        told, counts = _told(draws), np.empty(len(draws.requests), np.int64)
        self._library.orca_search(self._finds, _at(told), *self._sizes(draws), _at(counts))
        ids, scores = np.empty(counts.sum(), np.int64), np.empty(counts.sum(), np.float32)
        self._library.orca_found(self._finds, _at(ids), _at(scores))
        return Contenders(counts, ids, scores)

    def log_sums(self, logits: Floats, maxima: Floats, requests: Ids) -> npt.NDArray[np.float64]:
        """See Search."""
        draws, sums = _plain(logits, maxima, requests), np.empty(len(requests), np.float64)
        told = _told(draws)
        self._library.orca_weigh(_at(told), *self._sizes(draws), _at(sums))
        log_sums: npt.NDArray[np.float64] = told["best"] + np.log(sums / WHOLE)
        return log_sums

    def likeliest(self, logits: Floats, maxima: Floats, requests: Ids, count: int) -> Ids:
        """See Search."""
        draws, ids = _plain(logits, maxima, requests), np.empty((len(requests), count), np.int64)
        told = _told(draws)
        self._library.orca_likeliest(_at(told), *self._sizes(draws), count, _at(ids))
        return ids

    def _sizes(self, draws: Draws) -> tuple[int, int, int, int]:
        count = len(draws.requests)
        return count, draws.logits.shape[1], draws.maxima.shape[1], min(self._threads, count)


def _plain(logits: Floats, maxima: Floats, requests: Ids) -> Draws:
    """Of these requests, at temperature 1 and without truncation."""
    limits = Truncation.of([SamplingParams(1)] * len(requests), logits.shape[1])
    return Draws(logits, maxima, requests, limits, np.zeros(len(requests), np.int64))


def _told(draws: Draws) -> Told:
    told = np.empty(len(draws.requests), DRAW)
    told["logits"] = _address(draws.logits) + draws.requests * draws.logits.strides[0]
    told["maxima"] = _address(draws.maxima) + draws.requests * draws.maxima.strides[0]
    told["key"], told["best"] = draws.keys, draws.maxima.max(axis=1)[draws.requests]
    limits = draws.limits
    told["temperature"], told["lowest"] = limits.temperature, limits.lowest
    told["top_k"], told["top_p"] = limits.top_k, limits.top_p
    return told


def _address(array: Floats) -> int:
    assert array.flags.c_contiguous, array.strides
    return int(array.ctypes.data)


def _at(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
