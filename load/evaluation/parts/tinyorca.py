"""The two workloads of tinyorca, two requests at a time: iteration-level against request-level scheduling.

tinyorca is a minimal Orca whose author published these figures for Qwen3-0.6B on a laptop's GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from load.bench.figures import Figures, Table
from load.evaluation.bench import Bench, Found, Plots
from load.in_process import Engine, Setup, run_in_process
from load.plots import Bars
from load.report import quantile
from load.trace import Answer, Request, Run
from load.workloads import equal_size, short_long_mix
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

HELP = "tinyorca's table: equal requests, and short and long ones in turn"
MAX_BATCH_SIZE = 2
WORKLOADS = {"short_long_mix": short_long_mix(), "equal_size": equal_size()}
POLICIES = {"iteration-level": Scheduler, "request-level": RequestLevelScheduler}
HERE, BESIDE = "Two requests at a time", "Iteration-level over request-level, here and as tinyorca's author measured"
TOKENS, TTFT, LATENCY = "output tokens/s", "mean TTFT, s", "mean latency, s"
# the same three columns of tinyorca's log: its own figure over that of its baseline
TINYORCA = {
    "short_long_mix": (33.203 / 23.005, 15_512.64 / 25_116.07, 20_077.29 / 29_264.44),
    "equal_size": (39.556 / 39.830, 23_357.92 / 22_032.85, 29_778.13 / 28_392.27),
}


def measure(bench: Bench) -> Found:
    return Found(figures(bench.engine, WORKLOADS))


def figures(engine: Engine, workloads: Mapping[str, list[Request]]) -> Figures:
    here: Table = {}
    for name, requests in workloads.items():
        for policy in POLICIES:
            here[f"{name}, {policy}"] = _cells(ran(engine, requests, policy))
    return {HERE: here, BESIDE: {name: _beside(here, name) for name in workloads if name in TINYORCA}}


def ran(engine: Engine, requests: list[Request], policy: str) -> Run:
    """The run, in which each request must get all its tokens."""
    run = run_in_process(engine, requests, Setup(Knobs(MAX_BATCH_SIZE), scheduler=POLICIES[policy]))
    for answer in run.answers:
        expected = answer.request.max_new_tokens
        assert len(answer.tokens) == expected, f"{len(answer.tokens)} of {expected}"
    return run


def plots(found: Found) -> Plots:
    here = found.figures[HERE]
    groups = {
        name: {policy: here[f"{name}, {policy}"][TOKENS] for policy in POLICIES}
        for name in dict.fromkeys(row.rpartition(", ")[0] for row in here)
    }
    return {"tinyorca": [Bars("Two requests at a time", TOKENS, groups)]}


def _cells(run: Run) -> dict[str, float]:
    paces = [(answer.latency - answer.ttft) / max(1, len(answer.tokens) - 1) for answer in run.answers]
    return {
        "iterations": float(run.iterations),
        "seconds": run.seconds,
        TOKENS: run.throughput,
        TTFT: _mean(run.answers, lambda answer: answer.ttft),
        "P99 TTFT, s": quantile([answer.ttft for answer in run.answers], 0.99),
        "mean ms of an output token": statistics.fmean(paces) * 1e3,
        LATENCY: _mean(run.answers, lambda answer: answer.latency),
    }


def _mean(answers: Sequence[Answer], of: Callable[[Answer], float]) -> float:
    return statistics.fmean(of(answer) for answer in answers)


def _beside(here: Table, workload: str) -> dict[str, float]:
    ours, base = (here[f"{workload}, {policy}"] for policy in POLICIES)
    cells: dict[str, float] = {}
    for column, theirs in zip((TOKENS, TTFT, LATENCY), TINYORCA[workload], strict=True):
        cells |= {f"{column}, here": ours[column] / base[column], f"{column}, tinyorca": theirs}
    return cells
