"""Figure 11 of the paper on this machine: requests that are all alike, where scheduling by iteration gains less."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from load.evaluation.bench import Bench, Found, Plots
from load.evaluation.rates import (
    ITERATION,
    REQUEST,
    Variant,
    from_json,
    measured,
    panel,
    serve,
    table_of,
    to_json,
)
from load.simulation.paper import HOMOGENEOUS
from load.trace import Answer, Request
from load.workloads import sized

HELP = "figure 11: median latency against throughput of requests that are all alike"
VARIANTS = (Variant(REQUEST, 8), Variant(ITERATION, 8))


def measure(bench: Bench) -> Found:
    figures, series = {}, {}
    for prompt, output in HOMOGENEOUS:
        curves = [
            measured(
                variant.label,
                partial(serve, bench.engine, variant=variant),
                partial(_alike, prompt, output),
                variant.max_batch_size,
                bench.seconds,
                median_latency,
            )
            for variant in VARIANTS
        ]
        figures[_title(prompt, output)] = table_of(curves, 1, "s")
        series[_title(prompt, output)] = to_json(curves)
    return Found(figures, series)


def median_latency(answers: Sequence[Answer]) -> float:
    """Seconds from the moment when a request was due to its last token."""
    return statistics.median(answer.latency for answer in answers)


def plots(found: Found) -> Plots:
    panels = [
        panel(title, "median latency, s", from_json(curves), 1, log_y=False) for title, curves in found.series.items()
    ]
    return {"figure_11": list(panels)}


def _alike(prompt: int, output: int, count: int) -> list[Request]:
    return [sized(prompt, output)] * count


def _title(prompt: int, output: int) -> str:
    return f"All requests {prompt} tokens in, {output} out"
