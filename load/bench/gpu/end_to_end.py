"""The paper's section 6.2 in real time: iteration-level against request-level scheduling in one engine (figure 10).

The trace is the paper's; arrivals are Poisson, at rates up to what a configuration serves when all requests are there
at once. What differs from the paper: one process, no HTTP; and the baseline is our own engine, which returns a request
when it ends and pads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from load.bench.engine.batches import Batches
from load.bench.gpu.bench import Bench, Found
from load.bench.gpu.engine_alone import execution
from load.bench.gpu.iterations import CUT
from load.curves import Curve, Point, best_at
from load.in_process import Engine, Setup, run_trace
from load.markdown import table
from load.simulation.outcome import Served, median_normalized_latency, request_throughput
from load.simulation.paper_tables import panel
from load.simulation.plots import draw
from load.simulation.traces import Arrival, at_once, paper, poisson
from load.workloads import Job, any_prompt
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

LOADS = (0.3, 0.5, 0.7, 0.85, 1.0)  # of what a configuration serves at most
LEAST = 12  # requests of a trace
MOST = 256  # of one that is there at once
LONGEST = 12.0  # seconds of arrivals
ITERATION, REQUEST, EITHER = "iteration-level", "request-level", "batch of"  # one at a time, both are the same
LEVELS = (1, 16)  # twice the engine alone with these batches: the paper's level is twice one, too


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
        return Setup(Knobs(self.max_batch_size), scheduler=scheduler)


def section_6_2(bench: Bench) -> Found:
    """Curves of all variants that there is time for; what both ways to schedule serve at the same latency."""
    variants = list(_variants(bench.configuration.most))
    _warm_up(bench)
    levels = {f"twice the engine alone, batch of {n}": 2 * execution(bench, n, 128).normalized for n in LEVELS}
    curves: list[Curve] = []
    for index, variant in enumerate(variants):
        if bench.budget.spent:
            break
        curves.append(_curve(bench, variant, (len(variants) - index) * (1 + len(LOADS))))
        print(_row_said(curves[-1]), flush=True)
    missing = [v.label for v in variants if v.label not in {c.label for c in curves if len(c.points) == len(LOADS)}]
    drawn = [curve for curve in curves if curve.points]
    if bench.plots and drawn:
        y_most = 12e3 * min(curve.points[0].latency for curve in drawn)
        shown = panel(bench.name, "median normalized latency, ms/token", drawn, 1e3, y_most, REQUEST)
        draw(bench.plots / f"{bench.name}-section-6.2.png", [shown])
    ratios = gains(drawn, levels)
    text = f"{_curves_table(curves)}\n\n{_gains_table(ratios)}"
    if missing:
        text += f"\n\n{CUT} Not, or not all, measured: {', '.join(missing)}."
    return Found(text, {"curves": [asdict(curve) for curve in curves], "gains": ratios, "missing": missing})


def serve(engine: Engine, trace: list[Arrival], variant: Variant) -> list[Served]:
    """`trace` in real time, to its end. A latency counts from the moment when the request was due."""
    jobs = [Job(any_prompt(one.size.prompt, seed), one.size.output, at=one.at) for seed, one in enumerate(trace)]
    run = run_trace(engine, jobs, variant.setup)
    for answer in run.answers:
        assert len(answer.tokens) == answer.job.max_new_tokens, f"{len(answer.tokens)} of {answer.job.max_new_tokens}"
    return [Served(len(answer.job.prompt), answer.job.at, answer.times) for answer in run.answers]


def gains(curves: list[Curve], levels: dict[str, float]) -> list[dict[str, Any]]:
    """Requests/s of the best configuration of both kinds at each latency, and the most of all; ratio None where the
    baseline cannot be so fast under any load."""
    iteration = [curve for curve in curves if not curve.label.startswith(REQUEST)]
    request = [curve for curve in curves if not curve.label.startswith(ITERATION)]
    if not (iteration and request):
        return []
    found: list[dict[str, Any]] = []
    for what, level in [*levels.items(), ("any: the most they serve", inf)]:
        (ours, our_label), (theirs, their_label) = (
            max((curve.peak, curve.label) for curve in kind) if level == inf else best_at(kind, level)
            for kind in (iteration, request)
        )
        found.append(
            {
                "what": what,
                "latency": None if level == inf else level,
                ITERATION: ours,
                "iteration_label": our_label,
                REQUEST: theirs,
                "request_label": their_label,
                "ratio": ours / theirs if theirs else None,
            }
        )
    return found


def _variants(sizes: tuple[int, ...]) -> Iterator[Variant]:
    for size in sizes:
        if size == 1:
            yield Variant(EITHER, 1)
        else:
            yield Variant(REQUEST, size)
            yield Variant(ITERATION, size)


def _warm_up(bench: Bench) -> None:
    """What comes only once for a batch size, graphs and compiled kernels, comes here."""
    batches, batch = Batches(bench.engine), 1
    while batch <= max(bench.configuration.most):
        if batches.fits(batch, 64):
            batches.increments(batch, 32, 3)
        batch *= 2
    batches.initiations(1, 256, 2)


def _curve(bench: Bench, variant: Variant, points: int) -> Curve:
    """With the time that there is for each of so many points, of this curve and the later ones."""
    size = variant.max_batch_size
    sizes = paper(min(MOST, max(LEAST, 4 * size)))
    peak = request_throughput(serve(bench.engine, at_once(sizes), variant))
    measured: list[Point] = []
    for load in LOADS:
        points -= 1
        rate = load * peak
        seconds = min(LONGEST, 0.8 * bench.budget.share(points))  # the rest is for the requests that still run then
        count = max(LEAST, round(rate * seconds))
        if count / rate > bench.budget.left:
            break
        served = serve(bench.engine, poisson(paper(count), rate), variant)
        measured.append(Point(request_throughput(served), median_normalized_latency(served)))
    return Curve(variant.label, peak, measured)


def _cells(curve: Curve) -> list[str]:
    cells = [f"{point.throughput:.2f}, {point.latency * 1e3:,.1f}" for point in curve.points]
    return [curve.label, f"{curve.peak:.2f}", *cells, *[""] * (len(LOADS) - len(cells))]


def _row_said(curve: Curve) -> str:
    label, peak, *points = _cells(curve)
    return f"{label}: peak {peak} requests/s; requests/s, ms/token: {'; '.join(points)}"


def _curves_table(curves: list[Curve]) -> str:
    head = ["", "peak, requests/s", *(f"{load:.0%} load: requests/s, ms/token" for load in LOADS)]
    return table(head, map(_cells, curves))


def _gains_table(found: list[dict[str, Any]]) -> str:
    head = ["median normalized latency", "ms/token", f"{REQUEST}, requests/s", f"{ITERATION}, requests/s", "ratio"]
    rows = []
    for one in found:
        latency = "" if one["latency"] is None else f"{one['latency'] * 1e3:,.1f}"
        theirs, ours = (
            f"{one[REQUEST]:.2f} ({one['request_label']})",
            f"{one[ITERATION]:.2f} ({one['iteration_label']})",
        )
        rows.append([one["what"], latency, theirs, ours, f"{one['ratio']:.2f}" if one["ratio"] else "-"])
    return table(head, rows)
