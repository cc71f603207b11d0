"""Engines follow a load that triples and falls: 1, 3, 1."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence

from load.chaos.checker import Least
from load.chaos.streams import Outcome
from load.nodes.cluster import Cluster
from load.nodes.trial import LENGTH, NULL, NodeOptions, Trial, requests, trial, verdict
from load.nodes.watch import Moment
from load.report import quantile, table
from load.users.profile import Profile, Stage

WORKERS = 3
SETTINGS = {"engines": 1, "gateways": 1, "max_engines": 3, "upscale_delay": 3.0, "downscale_delay": 20.0}
SETTLE = 30.0  # seconds after the load has ended in which the cluster is watched


def run(options: NodeOptions) -> tuple[str, bool]:
    real = options.model != "null"
    low = 2.0 if real else 3.0  # requests/s
    stages = (Stage(30, low, low), Stage(80, 3 * low, 3 * low), Stage(40, low, low))
    settings = SETTINGS | (
        {"model": options.model, "threads": 1, "max_batch_size": 4, "dtype": "float32", "kv_blocks": 256}
        if real
        else NULL
    )
    with Cluster(options.folder, settings) as cluster:
        for _ in range(WORKERS):
            cluster.add_worker()
        cluster.deploy()
        return asyncio.run(_run(cluster, Profile(stages), real))


async def _run(cluster: Cluster, profile: Profile, real: bool) -> tuple[str, bool]:
    kinds = requests()
    async with trial(cluster, kinds, learn=real) as tried:
        began = await tried.open_loop(kinds, profile)
        await asyncio.sleep(SETTLE)
    shown, held = verdict(cluster, tried.streams, Least(len(tried.streams.outcomes) // 2))
    scaled = [m.engines for m in tried.watch.moments]
    followed = max(scaled) == WORKERS and scaled[0] == scaled[-1] == 1
    lines = [levels(tried, profile, began), "", need(tried, profile, began), "", shown]
    if not followed:
        lines.append(f"Engines went from {scaled[0]} to {max(scaled)} and {scaled[-1]}, not 1, {WORKERS}, 1.")
    return "\n".join(lines), held and followed


def levels(tried: Trial, profile: Profile, began: float) -> str:
    """A row for each half of each stage: what was offered, what was delivered, and the engines at its end."""
    rows, at = [], 0.0
    zero = min(outcome.began for outcome in tried.streams.outcomes)  # on the clock of the outcomes
    for stage in profile.stages:
        for half in (0, 1):
            begin = at + half * stage.seconds / 2
            end = begin + stage.seconds / 2
            rows.append(_row(tried, zero, began, begin, end, stage.begin))
        at += stage.seconds
    head = ["from s", "to s", "requests/s", "tokens/s offered", "tokens/s delivered", "first token s (median)", "(p95)",
            "engines ready at the end", "wanted"]  # fmt: skip
    return table(head, rows)


def _row(tried: Trial, zero: float, unix: float, begin: float, end: float, rate: float) -> Sequence[object]:
    outcomes = tried.streams.outcomes
    tokens = sum(begin <= arrival - zero < end for outcome in outcomes for arrival in outcome.arrivals)
    here = [o for o in outcomes if begin <= o.began - zero < end and o.arrivals]
    waits = [_wait(outcome) for outcome in here]
    last = _at(tried.watch.moments, unix + end)
    return (
        f"{begin:.0f}", f"{end:.0f}", f"{rate:g}", f"{rate * LENGTH:.0f}", f"{tokens / (end - begin):.0f}",
        f"{statistics.median(waits):.2f}" if waits else "", f"{quantile(waits, 0.95):.2f}" if waits else "",
        last.engines, last.wanted,
    )  # fmt: skip


def _wait(outcome: Outcome) -> float:
    return outcome.arrivals[0] - outcome.began


def _at(moments: Sequence[Moment], when: float) -> Moment:
    return max((m for m in moments if m.time <= when), key=lambda m: m.time, default=moments[0])


def need(tried: Trial, profile: Profile, began: float) -> str:
    """For each engine that was added: seconds from the rise of the load until it was wanted, ready and had its first
    iteration; and how long after the fall it was gone."""
    rise = began + profile.stages[0].seconds
    fall = rise + profile.stages[1].seconds
    rows = [
        [
            number,
            *(_seconds(tried.watch.first(rise, _at_least(number, of))) for of in (_wanted, _ready, _working)),
            _seconds(tried.watch.first(fall, _fewer_than(number))),
        ]
        for number in range(2, WORKERS + 1)
    ]
    head = ["engines", "wanted, s after the rise", "ready", "all have run an iteration", "fewer, s after the fall"]
    return table(head, rows)


def _at_least(number: int, of: Callable[[Moment], int]) -> Callable[[Moment], bool]:
    return lambda moment: of(moment) >= number


def _fewer_than(number: int) -> Callable[[Moment], bool]:
    return lambda moment: moment.engines < number


def _wanted(moment: Moment) -> int:
    return moment.wanted


def _ready(moment: Moment) -> int:
    return moment.engines


def _working(moment: Moment) -> int:
    return sum(first > 0 for first in moment.first_iterations.values())


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"
