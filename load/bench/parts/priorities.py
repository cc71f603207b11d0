"""Priorities: the time to first token of an urgent class while requests of another class keep the batch full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from load.bench.knobs import Oracle, agreement, increment_seconds
from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_exact_engine
from load.report import in_turn, spread, table
from load.stock import oracle
from load.trace import Answer, Request, Run
from load.workloads import any_prompt
from services.pool.limits import Limits
from services.scheduling import Knobs

TARGET = 12  # of the urgent class's time to first token, in times of an iteration


@dataclass(frozen=True, slots=True)
class Size:
    """`every`: the time between urgent requests, in times of an iteration."""

    places: int = 4
    patient: int = 16
    urgent: int = 6
    prompt: int = 64
    tokens: int = 48
    urgent_tokens: int = 16
    every: int = 30
    rounds: int = 3


def run(options: Options) -> str:
    return report(load_exact_engine(options), oracle(options), Size())


def report(engine: Engine, check: Oracle | None, size: Size) -> str:
    pace = increment_seconds(engine, size.places)
    target = TARGET * pace
    requests = [Request(any_prompt(size.prompt, seed), size.tokens, priority=1) for seed in range(size.patient)]
    requests += [
        Request(
            any_prompt(size.prompt, 1000 + seed),
            size.urgent_tokens,
            at=seed * size.every * pace,
            priority=-1,
            ttft=target,
        )
        for seed in range(1, size.urgent + 1)
    ]
    variants = {name: partial(run_in_process, engine, requests, setup) for name, setup in setups(size.places).items()}
    runs = in_turn(variants, size.rounds)
    head = ["order", "urgent TTFT, s", "max", "in time", "patient TTFT, s", "max", "iterations", "output tokens/s"]
    return (
        f"{engine.figures.numerics}; {size.patient} patient requests (class 1, {size.tokens} tokens) for {size.places} "
        f"places, and every {size.every * pace:.1f} s an urgent one (class -1, {size.urgent_tokens} tokens, target "
        f"{target:.2f} s to its first); {size.rounds} rounds in turn, medians. {agreement(engine, runs, check)}\n\n"
        + table(head, [[name, *cells(rounds)] for name, rounds in runs.items()])
    )


def setups(places: int) -> dict[str, Setup]:
    ranked = Limits(order="priority")
    return {
        "fcfs": Setup(Knobs(places)),
        "priority among those that wait": Setup(Knobs(places), ranked),
        "priority, and others give way": Setup(Knobs(places, order="priority"), ranked),
    }


def cells(runs: Sequence[Run]) -> list[str]:
    answers = [answer for run in runs for answer in run.answers]
    urgent = [answer for answer in answers if answer.request.priority < 0]
    patient = [answer for answer in answers if answer.request.priority > 0]
    in_time = sum(answer.ttft <= answer.request.ttft for answer in urgent)
    iterations = f"{median(run.iterations for run in runs):.0f}"
    throughput = spread([run.throughput for run in runs])
    return [*times(urgent), f"{in_time} of {len(urgent)}", *times(patient), iterations, throughput]


def times(answers: Sequence[Answer]) -> list[str]:
    """The median and the maximum of the times to first token."""
    values = [answer.ttft for answer in answers]
    return [f"{median(values):.2f}", f"{max(values):.2f}"]
