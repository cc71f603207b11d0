"""Curves of latency against throughput, of simulated and of measured systems, and their plots."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from load.plots import Line, Panel
from load.trace import Answer, Request
from load.workloads import poisson

LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)  # shares of the most that a configuration can serve
LEAST = 96  # requests of a trace


@dataclass(frozen=True, slots=True)
class Point:
    throughput: float  # requests/s
    latency: float  # seconds


@dataclass(frozen=True, slots=True)
class Curve:
    """`points` in order of growing load; `peak` is the throughput when all requests are there at once."""

    label: str
    peak: float
    points: list[Point]

    def throughput_at(self, latency: float) -> float:
        """Requests/s at which the curve first crosses `latency`, interpolated linearly between its points.

        0 if the latency of the least load is higher already; the throughput of the last point if none is higher.
        """
        if self.points[0].latency > latency:
            return 0.0
        for low, high in zip(self.points, self.points[1:], strict=False):
            if high.latency > latency:
                share = (latency - low.latency) / (high.latency - low.latency)
                return low.throughput + share * (high.throughput - low.throughput)
        return self.points[-1].throughput


def best_at(curves: Iterable[Curve], latency: float) -> tuple[float, str]:
    """The highest throughput (requests/s) that one of these configurations has at `latency`, and its label."""
    return max((curve.throughput_at(latency), curve.label) for curve in curves)


def request_throughput(answers: Sequence[Answer]) -> float:
    """Requests/s, from the first arrival to the last token."""
    return len(answers) / (max(answer.times[-1] for answer in answers) - min(answer.arrived for answer in answers))


def median_normalized_latency(answers: Sequence[Answer]) -> float:
    """Seconds per token."""
    return statistics.median(answer.normalized_latency for answer in answers)


def sweep(
    label: str,
    requests: Sequence[Request],
    serve: Callable[[list[Request]], list[Answer]],
    latency: Callable[[list[Answer]], float],
    loads: Sequence[float] = LOADS,
) -> Curve:
    """The curve of a configuration: Poisson arrivals at growing rates, each trace about as long in time."""
    peak = request_throughput(serve(list(requests)))
    points = []
    for load in loads:
        answers = serve(poisson(requests[: max(LEAST, round(load * len(requests)))], load * peak))
        points.append(Point(request_throughput(answers), latency(answers)))
    return Curve(label, peak, points)


def curves_panel(title: str, y_label: str, curves: list[Curve], unit: float, y_most: float, baseline: str) -> Panel:
    """Latencies times `unit` over throughput. Curves whose labels begin with `baseline` are dashed."""
    lines = []
    for curve in curves:
        x, y = [point.throughput for point in curve.points], [unit * point.latency for point in curve.points]
        lines.append(Line(curve.label, x, y, dashed=curve.label.startswith(baseline)))
    return Panel(title, "throughput, requests/s", y_label, lines, y_most, log_x=True)
