"""Iteration-level against request-level scheduling on the same engine, in process."""

from __future__ import annotations

import asyncio
from typing import Literal

from load.in_process import Engine, run_trace
from load.markdown import table
from load.options import Options, load_engine
from load.workloads import Job, equal_size, paper, short_long_mix

HELP = "iteration-level against request-level scheduling, two requests at a time"
MAX_BATCH_SIZE = 2


def run(options: Options) -> str:
    return report(load_engine(options), {"short_long_mix": short_long_mix(), "equal_size": equal_size()})


def report(engine: Engine, workloads: dict[str, list[Job]]) -> str:
    """The table of `workloads` under both policies."""
    measure(engine, paper(4, seed=9), "iteration")  # warm up
    rows = [
        measured(engine, name, jobs, policy) for name, jobs in workloads.items() for policy in ("iteration", "request")
    ]
    head = ["workload", "scheduling", "iterations", "seconds", "output tokens/s"]
    return f"{engine.figures.numerics}; max_batch_size {MAX_BATCH_SIZE}.\n\n" + table(head, rows)


def measured(engine: Engine, name: str, jobs: list[Job], policy: Literal["iteration", "request"]) -> list[object]:
    iterations, seconds = measure(engine, jobs, policy)
    tokens = sum(job.max_new_tokens for job in jobs)
    return [name, f"{policy}-level", f"{iterations:,}", f"{seconds:.1f}", f"{tokens / seconds:.1f}"]


def measure(engine: Engine, jobs: list[Job], policy: Literal["iteration", "request"]) -> tuple[int, float]:
    """Iterations and seconds."""
    done = asyncio.run(run_trace(engine, jobs, MAX_BATCH_SIZE, policy))
    for output, job in zip(done.outputs, jobs, strict=True):
        assert len(output) == job.max_new_tokens, f"{len(output)} tokens of {job.max_new_tokens}"
    return done.iterations, done.seconds
