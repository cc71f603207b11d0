"""Curves of latency against throughput, of simulated and of measured systems: points, tables and plots."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from load.plots import Line, Panel
from load.report import Table
from load.trace import Answer, Request
from load.workloads import poisson

LEAST, LEAST_TIMED = 96, 16  # requests of a trace that is simulated, and of one in real time
Serve = Callable[[list[Request]], list[Answer]]  # a whole trace


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


def to_json(curves: Iterable[Curve]) -> list[dict[str, Any]]:
    return [asdict(one) for one in curves]


def from_json(curves: Iterable[dict[str, Any]]) -> list[Curve]:
    return [Curve(one["label"], one["peak"], [Point(**point) for point in one["points"]]) for one in curves]


def best_at(curves: Iterable[Curve], latency: float) -> tuple[float, str]:
    """The highest throughput (requests/s) that one of these configurations has at `latency`, and its label."""
    return max((curve.throughput_at(latency), curve.label) for curve in curves)


def request_throughput(answers: Sequence[Answer]) -> float:
    """Requests/s, from the first arrival to the last token."""
    return len(answers) / (max(answer.times[-1] for answer in answers) - min(answer.arrived for answer in answers))


def median_latency(answers: Sequence[Answer]) -> float:
    """Seconds."""
    return statistics.median(answer.latency for answer in answers)


def median_normalized_latency(answers: Sequence[Answer]) -> float:
    """Seconds per token."""
    return statistics.median(answer.normalized_latency for answer in answers)


def sweep(
    label: str,
    serve: Serve,
    lengths: Callable[[int], list[Request]],
    most: int,
    loads: Sequence[float],
    latency: Callable[[Sequence[Answer]], float] = median_normalized_latency,
    seconds: float | None = None,
) -> Curve:
    """The curve of a configuration: its peak with `most` requests there at once, then Poisson arrivals at shares of it,
    for `seconds` each; without it, for about as long as the peak took."""
    peak = request_throughput(serve(lengths(most)))
    points = []
    for load in loads:
        count = max(LEAST_TIMED, round(load * peak * seconds)) if seconds else min(most, max(LEAST, round(load * most)))
        answers = serve(poisson(lengths(count), load * peak))
        points.append(Point(request_throughput(answers), latency(answers)))
    return Curve(label, peak, points)


def table_of(curves: Sequence[Curve], loads: Sequence[float], unit: float, name: str) -> Table:
    """A row for each curve: what it serves at most, and its points. Latencies, called `name`, are times `unit`."""
    rows: Table = {}
    for one in curves:
        rows[one.label] = {"saturated, requests/s": one.peak}
        for load, point in zip(loads, one.points, strict=True):
            rows[one.label] |= {
                f"at {load:.0%}, requests/s": point.throughput,
                f"at {load:.0%}, {name}": unit * point.latency,
            }
    return rows


def curves_panel(title: str, y_label: str, curves: Iterable[Curve], unit: float, baseline: str, **axes: Any) -> Panel:
    """Latencies times `unit` over throughput. Curves whose labels begin with `baseline` are dashed."""
    lines = []
    for curve in curves:
        x, y = [point.throughput for point in curve.points], [unit * point.latency for point in curve.points]
        lines.append(Line(curve.label, x, y, dashed=curve.label.startswith(baseline)))
    return Panel(title, "throughput, requests/s", y_label, lines, **axes)
