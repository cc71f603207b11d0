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
from dataclasses import dataclass
from pathlib import Path

from load.curves import Point, median_normalized_latency, request_throughput
from load.report import table
from load.simulation import faster_transformer
from load.simulation.cost import TABLE_1, Partition
from load.simulation.world import Policy, run_simulated
from load.trace import Answer, Request
from load.workloads import paper_lengths, poisson
from services.progress import Bar

HELP = "175B at 190 ms in the steady state, beside the paper's figures"
LATENCY = 0.190  # seconds a token (section 6.2)
PAPER = {"FasterTransformer": ("ft", 0.185), "Orca": ("orca", 6.81)}  # labels here, requests/s (section 6.2)
REQUESTS, SEEDS = 2000, (0, 1)
BASELINES = ((1, 1), (8, 8), (16, 8))
BATCH_SIZES = (32, 64, 128)
WARM_UP = 0.25  # of the requests
GUESS = 300  # requests that are there at once in a trace whose throughput is the first rate tried
DOWN, UP = 0.8, 1.06  # factors between the rates that are tried until the latency is crossed
LEAST, MOST = 0.05, 2.0  # of the first rate: others are not tried
RESOLUTION = 0.01  # of a rate, below which the crossing is interpolated

Serve = Callable[[list[Request]], list[Answer]]


def run(out: Path | None) -> str:
    partition = TABLE_1["175B"]
    fts = {f"ft({max_bs}, {mbs})": baseline(partition, max_bs, mbs) for max_bs, mbs in BASELINES}
    return report(fts | {f"orca({max_bs})": orca(partition, max_bs) for max_bs in BATCH_SIZES}, REQUESTS, SEEDS)


def report(systems: dict[str, Serve], requests: int, seeds: Sequence[int]) -> str:
    """Each configuration with the first seed, and the mean over `seeds` of the best of each system beside the paper."""
    steady, shown = Steady(requests, seeds[0]), Bar(systems.items(), desc="headline", unit="configurations")
    of_all = {name: steady.crossing(serve, LATENCY) for name, serve in shown}
    rows, means = [], dict[str, float]()
    for system, (begins, papers) in PAPER.items():
        best = max((name for name in of_all if name.startswith(begins)), key=of_all.__getitem__)
        held = [Steady(requests, seed).crossing(systems[best], LATENCY) for seed in seeds]
        means[system] = mean = statistics.mean(held)
        rows.append([f"{system}, {best}", f"{papers:g}", f"{mean:.3g}", f"{mean / papers:.2f}"])
    ours, theirs = (of["Orca"] / of["FasterTransformer"] for of in (means, {k: v for k, (_, v) in PAPER.items()}))
    rows.append(["ratio", f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}"])
    each = table(["", *of_all], [["requests/s at 190 ms", *(f"{held:.3f}" for held in of_all.values())]])
    return f"{each}\n\n{table(['requests/s at 190 ms', 'paper', 'here', 'here / paper'], rows)}"


# --- the steady state ----------------------------------------------------------------------------------------


def orca(partition: Partition, max_bs: int) -> Serve:
    """The real scheduler with as many batches in flight as stages."""
    policy = Policy(max_bs, partition.num_slots, partition.model.max_model_len, batches_in_flight=partition.stages)
    return lambda trace: run_simulated(trace, partition, policy)


def baseline(partition: Partition, max_bs: int, mbs: int) -> Serve:
    """FasterTransformer with this maximum batch size and micro-batch size."""
    return lambda trace: faster_transformer.serve(trace, partition, max_bs, mbs)


@dataclass(frozen=True, slots=True)
class Steady:
    """A trace of section 6.2 in length and seed, and how a system serves it in the steady state."""

    requests: int
    seed: int = 0

    def crossing(self, serve: Serve, latency: float) -> float:
        """The requests/s that `serve` holds at a median normalized latency of `latency` seconds.

        0 if the latency is higher at a twentieth of the most that it serves already.
        """
        trace = paper_lengths(self.requests, self.seed)
        guess = request_throughput(serve(paper_lengths(GUESS, self.seed)))
        return crossing(lambda rate: _steady(serve(poisson(trace, rate, self.seed + 1))), guess, latency)


def crossing(at: Callable[[float], Point], guess: float, latency: float) -> float:
    """The throughput where the latency of `at(rate)`, which grows with the rate, crosses `latency`; 0 if it is above
    `latency` at all rates down to a twentieth of `guess`.

    Raises ValueError if the latency is below `latency` at twice `guess`.
    """
    high_rate, high = guess, at(guess)
    low_rate, low = high_rate, high
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
