"""The paper's main result, 175B at 190 ms: the throughput that a system holds at a given latency.

Requests arrive at random times at a constant mean rate. The first quarter of them is a warm-up; the latency is the
median normalized latency of the others, and the throughput counts the requests that end between the end of the warm-up
and the last arrival. Bisection finds the rate at which that latency crosses the given one. A rate above what the system
can serve has a queue that grows with the trace, so a longer trace has a crossing at a lower rate, down to the rate
where the queue no longer grows; there the crossing stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from load.curves import Point, Serve, median_normalized_latency, request_throughput
from load.report import table
from load.simulation import faster_transformer
from load.simulation.cost import TABLE_1
from load.simulation.world import orca
from load.trace import Answer
from load.workloads import paper_lengths, poisson
from services.progress import Bar

HELP = "175B at 190 ms in the steady state, beside the paper's figures"
LATENCY = 0.190  # seconds a token (section 6.2)
PAPER = {"FasterTransformer": ("ft", 0.185), "Orca": ("orca", 6.81)}  # labels here, requests/s (section 6.2)
REQUESTS, SEEDS = 2000, (0, 1)
BASELINES = ((1, 1), (8, 8), (16, 8))  # max batch size, micro-batch size
BATCH_SIZES = (32, 64, 128)
WARM_UP = 0.25  # of the requests
GUESS = 300  # requests that are there at once in a trace whose throughput is the first rate tried
DOWN, UP = 0.8, 1.06  # factors between the rates that are tried until the latency is crossed
LEAST, MOST = 0.05, 2.0  # of the first rate: others are not tried
RESOLUTION = 0.01  # of a rate, below which the crossing is interpolated


def run(out: Path | None) -> str:
    of_175b, serve = TABLE_1["175B"], faster_transformer.serve
    systems: dict[str, Serve] = {
        f"ft({size}, {micro})": partial(serve, cost=of_175b, max_batch_size=size, microbatch_size=micro)
        for size, micro in BASELINES
    }
    systems |= {f"orca({size})": partial(orca, partition=of_175b, max_batch_size=size) for size in BATCH_SIZES}
    return report(systems, REQUESTS, SEEDS)


def report(systems: dict[str, Serve], requests: int, seeds: Sequence[int]) -> str:
    """Each configuration with the first seed, and the mean over `seeds` of the best of each system beside the paper."""
    shown = Bar(systems.items(), desc="headline", unit="configurations")
    of_all = {name: held(serve, requests, seeds[0]) for name, serve in shown}
    rows, means = [], dict[str, float]()
    for system, (begins, papers) in PAPER.items():
        best = max((name for name in of_all if name.startswith(begins)), key=of_all.__getitem__)
        means[system] = mean = statistics.mean(held(systems[best], requests, seed) for seed in seeds)
        rows.append([f"{system}, {best}", f"{papers:g}", f"{mean:.3g}", f"{mean / papers:.2f}"])
    ours, theirs = (of["Orca"] / of["FasterTransformer"] for of in (means, {k: v for k, (_, v) in PAPER.items()}))
    rows.append(["ratio", f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}"])
    each = table(["", *of_all], [["requests/s at 190 ms", *(f"{one:.3f}" for one in of_all.values())]])
    return f"{each}\n\n{table(['requests/s at 190 ms', 'paper', 'here', 'here / paper'], rows)}"


def held(serve: Serve, requests: int, seed: int, latency: float = LATENCY) -> float:
    """The requests/s that `serve` holds at a median normalized latency of `latency` seconds in the steady state, on a
    trace of section 6.2. 0 if the latency is higher at a twentieth of the most that it serves already."""
    trace = paper_lengths(requests, seed)
    guess = request_throughput(serve(paper_lengths(GUESS, seed)))
    return crossing(lambda rate: _steady(serve(poisson(trace, rate, seed + 1))), guess, latency)


def crossing(at: Callable[[float], Point], guess: float, latency: float) -> float:
    """The throughput where the latency of `at(rate)`, which grows with the rate, crosses `latency`; 0 if it is above
    `latency` at all rates down to a twentieth of `guess`.

    Raises ValueError if the latency is below `latency` at twice `guess`.
    """
    low_rate = high_rate = guess
    low = high = at(guess)
    while high.latency <= latency:
        if high_rate > MOST * guess:
            raise ValueError(f"the latency is below {latency} s at {high_rate:.3g} requests/s: the trace is too short")
        low_rate, low = high_rate, high
        high_rate *= UP
        high = at(high_rate)
    while low.latency > latency:
        if low_rate < LEAST * guess:
            return 0.0
        high_rate, high = low_rate, low
        low_rate *= DOWN
        low = at(low_rate)
    while high_rate - low_rate > RESOLUTION * high_rate:
        middle = (low_rate + high_rate) / 2
        point = at(middle)
        if point.latency <= latency:
            low_rate, low = middle, point
        else:
            high_rate, high = middle, point
    part = (latency - low.latency) / (high.latency - low.latency)
    return low.throughput + part * (high.throughput - low.throughput)


def _steady(answers: Sequence[Answer]) -> Point:
    """Throughput and latency after the warm-up."""
    counted = answers[int(WARM_UP * len(answers)) :]
    begin, end = counted[0].arrived, counted[-1].arrived
    ended = sum(begin < answer.times[-1] <= end for answer in answers)
    return Point(ended / (end - begin), median_normalized_latency(counted))
