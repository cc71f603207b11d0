"""What the scheduler's decisions cost: `select` and `update` with a full batch, without an engine."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from load.options import Options
from load.report import table
from services.messages import Claim, EngineFigures, Iteration, IterationResult
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler

ITERATIONS = 500


def run(options: Options) -> str:
    rows = []
    for running in (1, 32, 256, 1024):
        for name, knobs in (("Algorithm 1", Knobs(running)), ("all", everything(running))):
            times = measure(running, knobs)
            cells = (f"{f(times[call]) * 1e3:.3f}" for call in times for f in (statistics.median, p99))
            rows.append([running, name, *cells])
    head = ["running", "knobs", *(f"{name} {which}" for name in times for which in ("median", "p99"))]
    return "Milliseconds a call; every request stays in increment.\n\n" + table(head, rows)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def everything(running: int) -> Knobs:
    """Every setting that costs time in a decision."""
    return Knobs(
        running,
        token_budget=2 * running + 64,
        tbt_target=1.0,
        admission="on_demand",
        order="priority",
        lookahead=1,
        prefix_caching=True,
    )


def measure(running: int, knobs: Knobs, iterations: int = ITERATIONS) -> dict[str, list[float]]:
    """Seconds of each call in iterations of `running` increment requests, while one more request waits."""
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 1024, running * 64, 16, 100, "n"),
        knobs=knobs,
        eos_token_ids=[0],
    )
    sampling = SamplingParams(900)
    # a request that is past its target looks for one to preempt
    first = Claim("", 0.0, [5] * 100, [], sampling, ttft=0.001, waited=1.0)
    scheduler.add([replace(first, id=f"{i:032x}/0", rank=float(i)) for i in range(running + 1)])
    in_flight: deque[Iteration] = deque()
    times: dict[str, list[float]] = {"select": [], "update": [], "take_commits": [], "room": []}
    while len(times["room"]) < iterations:
        taken, iteration = timed(scheduler.select)
        assert iteration is not None
        in_flight.append(iteration)
        if len(in_flight) < knobs.depth:
            continue
        room_taken, _ = timed(scheduler.room)
        update_taken, _ = timed(partial(scheduler.update, answer(in_flight.popleft())))
        commits_taken, _ = timed(scheduler.take_commits)
        if len(iteration.scheduled) == sum(iteration.scheduled.values()) == running:  # all prompts are computed
            for name, seconds in zip(times, (taken, update_taken, commits_taken, room_taken), strict=True):
                times[name].append(seconds)
    return times


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    value = call()
    return time.perf_counter() - started, value


def answer(iteration: Iteration) -> IterationResult:
    return IterationResult(iteration.epoch, iteration.step, dict.fromkeys(iteration.scheduled, 7), elapsed=0.01)
