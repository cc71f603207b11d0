"""Curves: latency against throughput, as the load of a configuration grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from load.simulation.outcome import Served, request_throughput
from load.simulation.traces import Arrival, Size, at_once, poisson

LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)  # of what a configuration can serve at most
LEAST = 96  # requests of a trace


@dataclass(frozen=True, slots=True)
class Point:
    throughput: float  # requests/s
    latency: float  # seconds


@dataclass(frozen=True, slots=True)
class Curve:
    """`points` by growing load; `peak` is what is served when all requests are there at once."""

    label: str
    peak: float
    points: list[Point]

    def throughput_at(self, latency: float) -> float:
        """Requests/s at which the curve first crosses `latency`, between its points in a straight line.

        0 where the least load has a higher latency already, the last point's where none has.
        """
        if self.points[0].latency > latency:
            return 0.0
        for low, high in zip(self.points, self.points[1:], strict=False):
            if high.latency > latency:
                share = (latency - low.latency) / (high.latency - low.latency)
                return low.throughput + share * (high.throughput - low.throughput)
        return self.points[-1].throughput


def best_at(curves: Iterable[Curve], latency: float) -> tuple[float, str]:
    """The most requests/s that one of these configurations reaches at `latency`, and its label."""
    return max((curve.throughput_at(latency), curve.label) for curve in curves)


def sweep(
    label: str,
    sizes: list[Size],
    serve: Callable[[list[Arrival]], list[Served]],
    latency: Callable[[list[Served]], float],
    loads: Sequence[float] = LOADS,
) -> Curve:
    """The curve of a configuration: Poisson arrivals of growing rate, over about as much time."""
    peak = request_throughput(serve(at_once(sizes)))
    points = []
    for load in loads:
        served = serve(poisson(sizes[: max(LEAST, round(load * len(sizes)))], load * peak))
        points.append(Point(request_throughput(served), latency(served)))
    return Curve(label, peak, points)
