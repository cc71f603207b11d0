"""How long a call takes at best, on CPU or CUDA."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch

WINDOW = 0.004  # seconds over which calls are averaged: less than the scheduler's turn of another process
BUDGET = 0.3  # seconds in all
LEAST = 3  # windows, be the budget spent or not
GRAPH = 8  # calls of a CUDA graph at least


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


def device_seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """As `best_seconds`, of calls that never wait for the device.

    On CUDA all of them are one graph: what it costs to start an operation is no limit of the machine.
    """
    if device.type != "cuda":
        return best_seconds(calls, device)
    several = [*calls] * -(-GRAPH // len(calls))
    return best_seconds([_graph(several, device).replay], device) / len(several)


def _graph(calls: Sequence[Callable[[], object]], device: torch.device) -> torch.cuda.CUDAGraph:
    """All calls, one after the other. They run once before, on a stream of their own: libraries prepare themselves
    then, which cannot be captured."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
