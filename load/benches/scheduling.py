"""What the scheduler's decisions cost: `select` and `update` beside a full batch, no engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from load.markdown import table
from load.options import Options
from services.messages import Claim, EngineFigures, Iteration, IterationResult
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler

HELP = "select() and update() with 1 to 1,024 running requests"
ITERATIONS = 500


def run(options: Options) -> str:
    rows = []
    for running in (1, 32, 256, 1024):
        times = measure(running)
        rows.append([running, *(f"{f(times[name]) * 1e3:.3f}" for name in times for f in (statistics.median, p99))])
    head = ["running", *(f"{name} {which}" for name in times for which in ("median", "p99"))]
    return "Milliseconds a call; every request stays in increment.\n\n" + table(head, rows)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def measure(running: int, iterations: int = ITERATIONS) -> dict[str, list[float]]:
    """Seconds of each call over so many iterations of `running` increment requests."""
    scheduler = Scheduler(
        epoch="e",
        figures=EngineFigures("m", 1024, running * 64, 16, 100, "n"),
        knobs=Knobs(max_batch_size=running),
        eos_token_ids=[0],
    )
    sampling = SamplingParams(900)
    scheduler.add([Claim(f"{i:032x}/0", float(i), [5] * 100, [], sampling) for i in range(running)])
    times: dict[str, list[float]] = {"select": [], "update": [], "take_commits": [], "room": []}
    for number in range(iterations + 1):
        taken, iteration = timed(scheduler.select)
        assert iteration is not None
        room_taken, _ = timed(scheduler.room)
        result = answer(iteration)
        update_taken, _ = timed(partial(scheduler.update, result))
        commits_taken, _ = timed(scheduler.take_commits)
        if number:  # the first computes the prompts
            for name, seconds in zip(times, (taken, update_taken, commits_taken, room_taken), strict=True):
                times[name].append(seconds)
    return times


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    value = call()
    return time.perf_counter() - started, value


def answer(iteration: Iteration) -> IterationResult:
    return IterationResult(iteration.epoch, iteration.step, dict.fromkeys(iteration.scheduled, 7))
