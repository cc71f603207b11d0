"""Figure 10 of the paper on this machine: iteration-level against request-level scheduling on the same engine.

The trace is that of section 6.2: input ~ U(32, 512), output ~ U(1, 128), Poisson arrivals at three rates, and all
requests at once. The median normalized latency is the median over requests of the seconds from the moment when a
request was due to its last token, divided by its output tokens.
"""

from __future__ import annotations

from functools import partial
from math import inf

from load.curves import Curve, best_at, median_normalized_latency
from load.evaluation.bench import Bench, Found, Plots
from load.evaluation.rates import (
    EITHER,
    ITERATION,
    LATENCY,
    REQUEST,
    Variant,
    from_json,
    measured,
    panel,
    serve,
    table_of,
    to_json,
)
from load.report import Table
from load.workloads import paper_lengths, sized

HELP = "figure 10: median normalized latency against throughput, iteration-level and request-level scheduling"
VARIANTS = (
    Variant(EITHER, 1),
    Variant(REQUEST, 8),
    Variant(ITERATION, 8),
    Variant(REQUEST, 32),
    Variant(ITERATION, 32),
)
LONE = (272, 64)  # tokens in and out of a request of the mean length
LEVELS = (2, 5)  # times the normalized latency of a lone request

CURVES, SAME = "Median normalized latency against throughput", "Requests/s at the same median normalized latency"


def measure(bench: Bench) -> Found:
    engine, lone = bench.engine, Variant(EITHER, 1)
    alone = median_normalized_latency([serve(engine, [sized(*LONE)], lone)[0] for _ in range(3)])
    curves = [
        measured(
            variant.label,
            partial(serve, engine, variant=variant),
            paper_lengths,
            variant.max_batch_size,
            bench.seconds,
            median_normalized_latency,
        )
        for variant in VARIANTS
    ]
    figures = {
        CURVES: table_of(curves, 1e3, "ms/token"),
        SAME: gains(curves, {f"{times} times a lone request's": times * alone for times in LEVELS}),
    }
    return Found(figures, {"curves": to_json(curves)})


def plots(found: Found) -> Plots:
    curves = from_json(found.series["curves"])
    return {"figure_10": [panel("Iteration-level and request-level scheduling", LATENCY, curves, 1e3)]}


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
