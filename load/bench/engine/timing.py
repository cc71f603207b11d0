"""How long a call takes, on CPU or CUDA."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

WINDOW = 0.004  # seconds over which calls are averaged: less than the scheduler's turn of another process
BUDGET = 0.3  # seconds in all
LEAST = 3  # windows, be the budget spent or not
GRAPH = 8  # calls of a CUDA graph at least


class Seconds(NamedTuple):
    """Of one call: in the best window and in the median one.

    The best is a limit of the machine; what other work takes from it is none, but shows in the median.
    """

    best: float
    median: float


def seconds_of(calls: Sequence[Callable[[], object]], device: torch.device) -> Seconds:
    """`calls` in turn, averaged over a window."""
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
    windows = [taken]
    while len(windows) < LEAST or sum(windows) < BUDGET:
        windows.append(seconds(count))
    return Seconds(min(windows) / count, statistics.median(windows) / count)


def device_seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> Seconds:
    """As `seconds_of`, of calls that never wait for the device.

    On CUDA all of them are one graph: what it costs to start an operation is no limit of the machine.
    """
    if device.type != "cuda":
        return seconds_of(calls, device)
    several = [*calls] * -(-GRAPH // len(calls))
    best, median = seconds_of([_graph(several, device).replay], device)
    return Seconds(best / len(several), median / len(several))


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
