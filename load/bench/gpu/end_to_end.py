"""The paper's section 6.2 in real time: iteration-level against request-level scheduling on one engine (figure 10).

The trace is the paper's. Arrivals are Poisson, at rates up to what a configuration serves when all requests are there
at once. Two things differ from the paper: all runs in one process without HTTP, and the baseline is our own engine,
which returns a request as soon as it ends and pads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from load.bench.engine.batches import Batches
from load.bench.gpu.bench import CUT, Bench, Budget, GpuScale, PartResult
from load.bench.gpu.engine_alone import execution
from load.curves import (
    Curve,
    Point,
    best_at,
    curves_panel,
    median_normalized_latency,
    request_throughput,
)
from load.in_process import Engine, Setup, run_in_process
from load.plots import draw
from load.report import table
from load.trace import Answer, Request
from load.workloads import any_prompt, poisson
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

MOST = 256  # requests of a trace that is there at once
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
        return Setup(Knobs(self.max_batch_size), scheduler=scheduler)


def section_6_2(bench: Bench) -> PartResult:
    """The curves of all variants that there is time for, and what both policies serve at the same latency."""
    variants = list(_variants(bench.configuration.most))
    _warm_up(bench)
    loads, alone = bench.scale.loads, {n: execution(bench, n, 128).normalized for n in bench.scale.levels}
    levels = {f"twice the engine alone, batch of {n}": 2 * seconds for n, seconds in alone.items()}
    curves: list[Curve] = []
    for index, variant in enumerate(variants):
        if bench.budget.spent:
            break
        curves.append(_curve(bench, variant, (len(variants) - index) * (1 + len(loads))))
        print(_line(curves[-1]), flush=True)
    whole = {curve.label for curve in curves if len(curve.points) == len(loads)}
    missing = [variant.label for variant in variants if variant.label not in whole]
    drawn = [curve for curve in curves if curve.points]
    if bench.plots and drawn:
        y_most = 12e3 * min(curve.points[0].latency for curve in drawn)
        shown = curves_panel(bench.name, "median normalized latency, ms/token", drawn, 1e3, y_most, REQUEST)
        draw(bench.plots / f"{bench.name}-section-6.2.png", [shown])
    ratios = gains(drawn, levels)
    text = f"{_curves_table(curves, loads)}\n\n{_gains_table(ratios)}"
    if missing:
        text += f"\n\n{CUT} Not, or not all, measured: {', '.join(missing)}."
    return PartResult(text, {"curves": [asdict(curve) for curve in curves], "gains": ratios, "missing": missing})


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


def gains(curves: list[Curve], levels: dict[str, float]) -> list[dict[str, Any]]:
    """Requests/s of the best configuration of each policy at each latency, and at any; the ratio is None where the
    baseline does not reach that latency under any load."""
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
    """Create what is created once for a batch size: graphs and compiled kernels."""
    batches, batch = Batches(bench.engine), 1
    while batch <= max(bench.configuration.most):
        if batches.fits(batch, 64):
            batches.increments(batch, 32, 3)
        batch *= 2
    batches.initiations(1, 256, 2)


def _curve(bench: Bench, variant: Variant, points: int) -> Curve:
    """The curve of a variant. The time left is shared by `points` points: those of this curve and of all later ones."""
    first = min(MOST, max(bench.scale.least, 4 * variant.max_batch_size))
    return curve(
        variant.label, lambda trace: serve(bench.engine, trace, variant), first, bench.scale, bench.budget, points
    )


def curve(
    label: str,
    serve: Serve,
    first: int,
    scale: GpuScale,
    budget: Budget,
    points: int,
    latency: Callable[[Sequence[Answer]], float] = median_normalized_latency,
) -> Curve:
    """The curve of what `serve` serves: its peak from `first` requests at once, then Poisson arrivals at the loads of
    `scale`, as long as `budget` lasts, which is shared by `points` points."""
    peak = request_throughput(serve(scale.lengths(first)))
    measured: list[Point] = []
    for load in scale.loads:
        points -= 1
        rate = load * peak
        seconds = min(scale.longest, 0.8 * budget.share(points))  # the rest is for requests that still run then
        count = max(scale.least, round(rate * seconds))
        if count / rate > budget.left:
            break
        answers = serve(poisson(scale.lengths(count), rate))
        measured.append(Point(request_throughput(answers), latency(answers)))
    return Curve(label, peak, measured)


def _cells(curve: Curve) -> list[str]:
    return [f"{point.throughput:.2f}, {point.latency * 1e3:,.1f}" for point in curve.points]


def _line(curve: Curve) -> str:
    return f"{curve.label}: peak {curve.peak:.2f} requests/s; requests/s, ms/token: {'; '.join(_cells(curve))}"


def _curves_table(curves: list[Curve], loads: tuple[float, ...]) -> str:
    head = ["", "peak, requests/s", *(f"{load:.0%} load: requests/s, ms/token" for load in loads)]
    rows = []
    for curve in curves:
        missing = [""] * (len(loads) - len(curve.points))
        rows.append([curve.label, f"{curve.peak:.2f}", *_cells(curve), *missing])
    return table(head, rows)


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
