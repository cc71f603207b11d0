"""Curves of latency against throughput as figures, as JSON, and as a panel: what several parts measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any

from load.bench.figures import Table
from load.bench.gpu.bench import Budget, GpuScale
from load.bench.gpu.end_to_end import REQUEST, Serve, curve
from load.curves import Curve, Point, curves_panel
from load.plots import Panel
from load.trace import Answer, Request

LOADS = (0.4, 0.7, 0.9)  # shares of the most that a configuration serves
LEAST = 16  # requests of a trace
LATENCY = "median normalized latency, ms/token"


def measured(
    label: str,
    serve: Serve,
    lengths: Callable[[int], list[Request]],
    max_batch_size: int,
    seconds: float,
    latency: Callable[[Sequence[Answer]], float],
) -> Curve:
    """The curve of `serve`: its peak, then Poisson arrivals for `seconds` at each of LOADS."""
    scale = GpuScale(lengths=lengths, loads=LOADS, least=LEAST, longest=seconds)
    first = max(LEAST, 4 * max_batch_size)
    return curve(label, serve, first, scale, Budget(inf), 1 + len(LOADS), latency)


def table_of(curves: Sequence[Curve], unit: float, name: str) -> Table:
    """A row for each curve: what it serves at most, and its points. Latencies, called `name`, are times `unit`."""
    rows: Table = {}
    for one in curves:
        rows[one.label] = {"saturated, requests/s": one.peak}
        for load, point in zip(LOADS, one.points, strict=True):
            rows[one.label] |= {
                f"at {load:.0%}, requests/s": point.throughput,
                f"at {load:.0%}, {name}": unit * point.latency,
            }
    return rows


def to_json(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    return [asdict(one) for one in curves]


def from_json(curves: Sequence[dict[str, Any]]) -> list[Curve]:
    return [Curve(one["label"], one["peak"], [Point(**point) for point in one["points"]]) for one in curves]


def panel(
    title: str, y_label: str, curves: list[Curve], unit: float, baseline: str = REQUEST, log_y: bool = True
) -> Panel:
    """The points of each curve, and a dotted line at what it serves at most. Curves whose labels end alike have one
    colour."""
    ends = list(dict.fromkeys(one.label.rpartition(" ")[2] for one in curves))
    made = curves_panel(title, y_label, curves, unit, inf, baseline)
    lines = [
        replace(line, limit=one.peak, color=f"C{ends.index(one.label.rpartition(' ')[2])}")
        for line, one in zip(made.lines, curves, strict=True)
    ]
    note = "Dotted: the most that each serves, with all requests there at once (sparse dots: dashed lines)."
    return replace(made, lines=lines, y_most=None, x_least=0.0, log_x=False, log_y=log_y, note=note)
