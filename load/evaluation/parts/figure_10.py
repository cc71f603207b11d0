"""Figure 10 of the paper on this machine: iteration-level against request-level scheduling on the same engine.

The trace is that of section 6.2: input ~ U(32, 512), output ~ U(1, 128), Poisson arrivals at three rates, and all
requests at once. The median normalized latency is the median over requests of the seconds from the moment when a
request was due to its last token, divided by its output tokens.
"""

from __future__ import annotations

from functools import partial
from math import inf

from load.curves import (
    Curve,
    best_at,
    curves_panel,
    from_json,
    median_normalized_latency,
    sweep,
    table_of,
    to_json,
)
from load.evaluation.bench import Bench, Found, Plots
from load.in_process import Engine, Setup, run_in_process
from load.report import Table
from load.trace import Answer, Request, since_due
from load.workloads import paper_lengths, prompted, sized
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

HELP = "figure 10: median normalized latency against throughput, iteration-level and request-level scheduling"
LOADS = (0.4, 0.7, 0.9)  # shares of the most that a configuration serves
LATENCY = "median normalized latency, ms/token"
ITERATION, REQUEST, EITHER = "iteration-level", "request-level", "batch of"  # with batches of 1 both are the same
VARIANTS = ((EITHER, 1), (REQUEST, 8), (ITERATION, 8), (REQUEST, 32), (ITERATION, 32))  # with their max batch size
LONE = (272, 64)  # tokens in and out of a request of the mean length
LEVELS = (2, 5)  # times the normalized latency of a lone request
MOST = 256  # requests that are there at once

CURVES, SAME = "Median normalized latency against throughput", "Requests/s at the same median normalized latency"


def measure(bench: Bench) -> Found:
    alone = median_normalized_latency([serve([sized(*LONE)], bench.engine, EITHER, 1)[0] for _ in range(3)])
    curves = [
        sweep(
            f"{kind} {size}",
            partial(serve, engine=bench.engine, kind=kind, max_batch_size=size),
            paper_lengths,
            bench.shorter(min(MOST, max(16, 4 * size)), 16),
            LOADS,
            seconds=bench.seconds,
        )
        for kind, size in VARIANTS
    ]
    levels = {f"{times} times a lone request's": times * alone for times in LEVELS}
    figures = {CURVES: table_of(curves, LOADS, 1e3, "ms/token"), SAME: gains(curves, levels)}
    return Found(figures, {"curves": to_json(curves)})


def plots(found: Found) -> Plots:
    title, curves = "Iteration-level and request-level scheduling", from_json(found.series["curves"])
    return {"figure_10": [curves_panel(title, LATENCY, curves, 1e3, REQUEST, log_y=True)]}


def serve(trace: list[Request], engine: Engine, kind: str, max_batch_size: int) -> list[Answer]:
    """Run `trace` in real time, to its end. A latency counts from the moment when the request was due."""
    scheduler = RequestLevelScheduler if kind == REQUEST else Scheduler
    return since_due(run_in_process(engine, prompted(trace), Setup(Knobs(max_batch_size), scheduler)).answers)


def gains(curves: list[Curve], levels: dict[str, float]) -> Table:
    """Requests/s of the best configuration of each policy at each of these latencies (seconds a token), and at any.
    There is no ratio where the baseline does not reach that latency under any load."""
    of = {
        REQUEST: [curve for curve in curves if not curve.label.startswith(ITERATION)],
        ITERATION: [curve for curve in curves if not curve.label.startswith(REQUEST)],
    }
    rows: Table = {}
    for what, level in [*levels.items(), ("any: the most they serve", inf)]:
        rows[what] = {} if level == inf else {"ms/token": 1e3 * level}
        for kind, own in of.items():
            rows[what][kind] = max(curve.peak for curve in own) if level == inf else best_at(own, level)[0]
        if base := rows[what][REQUEST]:
            rows[what]["ratio"] = rows[what][ITERATION] / base
    return rows
