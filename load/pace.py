"""Pace: how fast an engine is, so that a part can say when requests come on any machine."""

from __future__ import annotations

import statistics

from load.in_process import Engine, Setup, run_trace
from load.workloads import FILLER, Job
from services.scheduling import Knobs

TOKENS = 12


def increment_seconds(engine: Engine, requests: int, prompt: int = 32) -> float:
    """Of an iteration of so many increment requests, a median; the first iterations warm the engine up."""
    run = run_trace(engine, [Job([FILLER] * prompt, TOKENS)] * requests, Setup(Knobs(requests)))
    return statistics.median(ran.seconds for ran in run.ran if ran.computed == ran.requests == requests)
