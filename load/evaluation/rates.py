"""Curves of latency against throughput: how they are measured in real time, as figures, as JSON, and as a panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from load.curves import Curve, Point, curves_panel, request_throughput
from load.in_process import Engine, Setup, run_in_process
from load.plots import Panel
from load.report import Table
from load.trace import Answer, Request
from load.workloads import any_prompt, poisson
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

LOADS = (0.4, 0.7, 0.9)  # shares of the most that a configuration serves
LEAST = 16  # requests of a trace
MOST = 256  # requests that are there at once
LATENCY = "median normalized latency, ms/token"
ITERATION, REQUEST, EITHER = "iteration-level", "request-level", "batch of"  # with batches of 1 both are the same
Serve = Callable[[list[Request]], list[Answer]]  # a whole trace


@dataclass(frozen=True, slots=True)
class Variant:
    """A scheduler with a max batch size."""

    kind: str
    max_batch_size: int

    @property
    def label(self) -> str:
        return f"{self.kind} {self.max_batch_size}"

    @property
    def setup(self) -> Setup:
        scheduler = RequestLevelScheduler if self.kind == REQUEST else Scheduler
        return Setup(Knobs(self.max_batch_size), scheduler)


def serve(engine: Engine, trace: list[Request], variant: Variant) -> list[Answer]:
    """Run `trace` in real time, to its end. A latency counts from the moment when the request was due."""
    return since_due(run_in_process(engine, prompted(trace), variant.setup).answers)


def prompted(trace: Sequence[Request]) -> list[Request]:
    """The trace with prompts of the same lengths that share no prefix."""
    return [replace(request, prompt=any_prompt(len(request.prompt), seed)) for seed, request in enumerate(trace)]


def since_due(answers: Sequence[Answer]) -> list[Answer]:
    """Whole answers whose latencies count from when the requests were due, not from when they were sent."""
    for answer in answers:
        expected = answer.request.max_new_tokens
        assert len(answer.tokens) == expected, f"{len(answer.tokens)} tokens of {expected}"
        answer.arrived = answer.request.at
    return list(answers)


def measured(
    label: str,
    serve: Serve,
    lengths: Callable[[int], list[Request]],
    max_batch_size: int,
    seconds: float,
    latency: Callable[[Sequence[Answer]], float],
) -> Curve:
    """The curve of `serve`: its peak, then Poisson arrivals for `seconds` at each of LOADS."""
    peak = request_throughput(serve(lengths(min(MOST, max(LEAST, 4 * max_batch_size)))))
    points = []
    for load in LOADS:
        rate = load * peak
        answers = serve(poisson(lengths(max(LEAST, round(rate * seconds))), rate))
        points.append(Point(request_throughput(answers), latency(answers)))
    return Curve(label, peak, points)


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
