"""CompiledSearch: finds tokens among the logits of requests on a CPU by compiled functions, for many requests at once.

The maxima of a request's chunks of logits show where the largest logits are. The functions are those of
`backends/cpu/kernels/search.cpp`.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.engine.batch.buffers import ReusedBuffer
from services.engine.batch.grammars import Words
from services.engine.sampling.truncation import WHOLE, Truncation
from services.engine.sampling.whole_rows import CHUNK
from services.requests import SamplingParams

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# Draw in kernels/draws.h; the names that Truncation has are its fields
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

DrawStructs = np.ndarray[tuple[int], np.dtype[np.void]]


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
    """The tokens that can win a draw. The winner of each draw is among its candidates, which are ordered by id."""

    counts: Ids  # [draws], how many each has
    ids: Ids  # of all draws, one after another
    scores: Floats


class CompiledSearch:
    """Not thread-safe. Each call has at least one request.

    `logits` are [requests, vocab], `maxima` [requests, chunks] those of their chunks; a call is about the rows whose
    numbers are in `requests`."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._library, self._threads = library, threads
        self._masked = ReusedBuffer()
        self._finds = ctypes.c_void_p(library.orca_new_finds())
        weakref.finalize(self, library.orca_delete_finds, self._finds)

    def candidates(self, draws: Draws) -> Candidates:
        """The candidates of all draws."""
        structs, counts = _structs(draws), np.empty(len(draws.requests), np.int64)
        self._library.orca_search(self._finds, _at(structs), *self._sizes(draws), _at(counts))
        ids, scores = np.empty(counts.sum(), np.int64), np.empty(counts.sum(), np.float32)
        self._library.orca_found(self._finds, _at(ids), _at(scores))
        return Candidates(counts, ids, scores)

    def log_sums(self, logits: Floats, maxima: Floats, requests: Ids) -> npt.NDArray[np.float64]:
        """log(sum(exp(logits))) of each of these requests."""
        draws, sums = _plain(logits, maxima, requests), np.empty(len(requests), np.float64)
        structs = _structs(draws)
        self._library.orca_weigh(_at(structs), *self._sizes(draws), _at(sums))
        log_sums: npt.NDArray[np.float64] = structs["best"] + np.log(sums / WHOLE)
        return log_sums

    def likeliest(self, logits: Floats, maxima: Floats, requests: Ids, count: int) -> Ids:
        """The tokens [requests, count] with the largest logits of each of these requests, in descending order; of equal
        ones the lower id comes first."""
        draws, ids = _plain(logits, maxima, requests), np.empty((len(requests), count), np.int64)
        structs = _structs(draws)
        self._library.orca_likeliest(_at(structs), *self._sizes(draws), count, _at(ids))
        return ids

    def masked(self, logits: Floats, requests: Ids, masks: Words) -> tuple[Floats, Floats]:
        """The logits [requests, vocab] of these requests, -inf for tokens without a bit in `masks` [requests, words];
        and the maxima of their chunks. The logits are valid until the next call."""
        vocab, count = logits.shape[1], len(requests)
        limited = self._masked(count, vocab).numpy()
        maxima = np.empty((count, -(-vocab // CHUNK)), np.float32)
        sizes = count, vocab, masks.shape[1], min(self._threads, count)
        places = ctypes.c_void_p(_address(logits)), _at(requests), _at(masks)
        self._library.orca_mask(*places, *sizes, _at(limited), _at(maxima))
        return limited, maxima

    def _sizes(self, draws: Draws) -> tuple[int, int, int]:
        count = len(draws.requests)
        return count, draws.logits.shape[1], min(self._threads, count)


def _plain(logits: Floats, maxima: Floats, requests: Ids) -> Draws:
    """Draws of these requests at temperature 1 and without truncation."""
    limits = Truncation.from_params([SamplingParams(1)] * len(requests), logits.shape[1])
    return Draws(logits, maxima, requests, limits, np.zeros(len(requests), np.int64))


def _structs(draws: Draws) -> DrawStructs:
    structs = np.empty(len(draws.requests), DRAW)
    structs["logits"] = _address(draws.logits) + draws.requests * draws.logits.strides[0]
    structs["maxima"] = _address(draws.maxima) + draws.requests * draws.maxima.strides[0]
    structs["key"], structs["best"] = draws.keys, draws.maxima.max(axis=1)[draws.requests]
    for name, values in draws.limits._asdict().items():
        structs[name] = values
    return structs


def _address(array: Floats) -> int:
    assert array.flags.c_contiguous, array.strides
    return int(array.ctypes.data)


def _at(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
