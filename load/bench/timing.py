"""How much is measured, and how long a call takes on a CPU or on CUDA."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from load.trace import Request
from load.workloads import paper

LEAST_WINDOWS = 3  # even if the budget is spent
LEAST_GRAPH_CALLS = 8
HOLD_UP = 40_000_000  # cycles: 20 ms at 2 GHz, longer than it takes to launch an iteration
ROW_COUNTS = tuple(2**i for i in range(12))  # 1 to 2,048


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. The defaults are what the docs quote; tests measure less."""

    window: float = 0.004  # seconds over which calls are averaged: less than another process's turn of the processor
    budget: float = 0.3  # seconds of all windows of a call
    row_counts: tuple[int, ...] = ROW_COUNTS  # of matrix products
    cuda_row_counts: tuple[int, ...] = (1, 8, 64, 256, 1024, 2048, 4096, 8192)
    steps: int = 16  # increment iterations, the first of which is not counted
    times: int = 3  # initiation iterations, after one that is not counted
    sampler_batches: tuple[int, ...] = (1, 8, 32, 256)
    drafted: tuple[int, ...] = (1, 8, 32)  # streams with drafts
    streams: int = 64  # of an engine that is killed
    kills: int = 8
    takeover_seconds: float = 60.0  # from the first load on, after which no engine is killed any more
    trace: Sequence[Request] = field(default_factory=paper)


FULL = Scale()


def seconds_of(calls: Sequence[Callable[[], object]], device: torch.device, scale: Scale) -> float:
    """The seconds of one of these calls, which are made in turn, in the best window: the limit of the machine."""
    turn = itertools.cycle(calls)

    def seconds(count: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            next(turn)()
        synchronize(device)
        return time.perf_counter() - began

    seconds(1)  # costs that occur only once
    count = 1
    taken = seconds(count)
    while taken < scale.window:
        count *= 2
        taken = seconds(count)
    windows = [taken]
    while len(windows) < LEAST_WINDOWS or sum(windows) < scale.budget:
        windows.append(seconds(count))
    return min(windows) / count


def device_seconds(calls: Sequence[Callable[[], object]], device: torch.device, scale: Scale) -> float:
    """The seconds of one of these calls, which never wait for the device; see `seconds_of`.

    On CUDA all calls are replayed as one graph: the cost of a launch is no limit of the machine.
    """
    if device.type != "cuda":
        return seconds_of(calls, device, scale)
    several = [*calls] * -(-LEAST_GRAPH_CALLS // len(calls))
    return seconds_of([_graph(several, device).replay], device, scale) / len(several)


def _graph(calls: Sequence[Callable[[], object]], device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of all calls in order. They run once before on a stream of their own, where libraries initialise
    themselves: that cannot be captured."""
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


class Mark:
    """A place in the work of a device, made behind all that was launched before."""

    def __init__(self, device: torch.device) -> None:
        self._at = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()

    def seconds_since(self, earlier: Mark) -> float:
        """Waits until the device has reached both."""
        if self._event and earlier._event:
            self._event.synchronize()  # a result comes before the mark behind it
            return float(earlier._event.elapsed_time(self._event)) / 1e3
        return self._at - earlier._at


def hold_up(device: torch.device) -> None:
    """Keep the device from what is launched next for about 20 ms."""
    if device.type == "cuda":
        torch.cuda._sleep(HOLD_UP)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
