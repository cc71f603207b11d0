"""Iteration-level against request-level scheduling on the same engine, in process."""

from __future__ import annotations

from load.answers import Run
from load.in_process import Engine, Setup, run_trace
from load.markdown import table
from load.options import Options, load_engine
from load.workloads import Job, equal_size, paper, short_long_mix
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

MAX_BATCH_SIZE = 2
POLICIES = {"iteration-level": Scheduler, "request-level": RequestLevelScheduler}


def run(options: Options) -> str:
    return report(load_engine(options), {"short_long_mix": short_long_mix(), "equal_size": equal_size()})


def report(engine: Engine, workloads: dict[str, list[Job]]) -> str:
    """The table of `workloads` under both policies."""
    measure(engine, paper(4, seed=9), Scheduler)  # warm up
    rows = [measured(engine, name, jobs, policy) for name, jobs in workloads.items() for policy in POLICIES]
    head = ["workload", "scheduling", "iterations", "seconds", "output tokens/s"]
    return f"{engine.figures.numerics}; max_batch_size {MAX_BATCH_SIZE}.\n\n" + table(head, rows)


def measured(engine: Engine, name: str, jobs: list[Job], policy: str) -> list[object]:
    run = measure(engine, jobs, POLICIES[policy])
    return [name, policy, f"{run.iterations:,}", f"{run.seconds:.1f}", f"{run.throughput:.1f}"]


def measure(engine: Engine, jobs: list[Job], scheduler: type[Scheduler]) -> Run:
    run = run_trace(engine, jobs, Setup(Knobs(MAX_BATCH_SIZE), scheduler=scheduler))
    for answer in run.answers:
        assert len(answer.tokens) == answer.job.max_new_tokens, f"{len(answer.tokens)} of {answer.job.max_new_tokens}"
    return run
