"""How long a call takes at best, on CPU or CUDA."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch

WINDOW = 0.004  # seconds over which calls are averaged: less than the scheduler's turn of another process
BUDGET = 0.3  # seconds in all
LEAST = 3  # windows, be the budget spent or not


def best_seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Seconds of one call: `calls` in turn, averaged over a window; the best window there is.

    The best and not the median: what other work takes from the machine is no limit of the machine.
    """
    turn = itertools.cycle(calls)

    def seconds(count: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            next(turn)()
        synchronize(device)
        return time.perf_counter() - began

    seconds(1)  # what comes only once
    count = 1
    taken = seconds(count)
    while taken < WINDOW:
        count *= 2
        taken = seconds(count)
    best, spent, windows = taken, taken, 1
    while windows < LEAST or spent < BUDGET:
        taken = seconds(count)
        best, spent, windows = min(best, taken), spent + taken, windows + 1
    return best / count


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
