"""Iteration-level against request-level scheduling on the same engine, in process."""

from __future__ import annotations

from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_engine
from load.report import table
from load.trace import Request, Run
from load.workloads import equal_size, paper, short_long_mix
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

MAX_BATCH_SIZE = 2
POLICIES = {"iteration-level": Scheduler, "request-level": RequestLevelScheduler}


def run(options: Options) -> str:
    return report(load_engine(options), {"short_long_mix": short_long_mix(), "equal_size": equal_size()})


def report(engine: Engine, workloads: dict[str, list[Request]]) -> str:
    """The table of all workloads under both policies."""
    measure(engine, paper(4, seed=9), Scheduler)  # warm up
    rows = [measured(engine, name, requests, policy) for name, requests in workloads.items() for policy in POLICIES]
    head = ["workload", "scheduling", "iterations", "seconds", "output tokens/s"]
    return f"{engine.figures.numerics}; max_batch_size {MAX_BATCH_SIZE}.\n\n" + table(head, rows)


def measured(engine: Engine, name: str, requests: list[Request], policy: str) -> list[object]:
    run = measure(engine, requests, POLICIES[policy])
    return [name, policy, f"{run.iterations:,}", f"{run.seconds:.1f}", f"{run.throughput:.1f}"]


def measure(engine: Engine, requests: list[Request], scheduler: type[Scheduler]) -> Run:
    run = run_in_process(engine, requests, Setup(Knobs(MAX_BATCH_SIZE), scheduler=scheduler))
    for answer in run.answers:
        assert len(answer.tokens) == answer.request.max_new_tokens, (
            f"{len(answer.tokens)} of {answer.request.max_new_tokens}"
        )
    return run
