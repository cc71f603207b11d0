"""Chunked prefill: the time between the tokens of running streams while a prompt of 4,000 tokens arrives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median

from load.bench.knobs import Oracle, agreement, increment_seconds
from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_exact_engine
from load.report import in_turn, quantile, spread, table
from load.stock import oracle
from load.trace import Request, Run
from load.workloads import any_prompt
from services.scheduling import Knobs

MAX_BATCH_SIZE = 8
TARGET = 5  # times the time of an iteration without the prompt


@dataclass(frozen=True, slots=True)
class Size:
    """`arrival`: when the prompt arrives, in iterations of the streams alone. The streams outlast the prompt even in
    small chunks."""

    streams: int = 4
    tokens: int = 112
    prompt: int = 4000
    arrival: int = 16
    budgets: tuple[int, ...] = (512, 128)
    rounds: int = 2


def run(options: Options) -> str:
    return report(load_exact_engine(options), oracle(options), Size())


def report(engine: Engine, check: Oracle | None, size: Size) -> str:
    pace = increment_seconds(engine, size.streams)
    streams = [Request(any_prompt(32, seed), size.tokens) for seed in range(size.streams)]
    requests = [*streams, Request(any_prompt(size.prompt, size.streams), 8, at=size.arrival * pace)]
    knobs = {"none": Knobs(MAX_BATCH_SIZE)}
    knobs |= {f"{budget} tokens": Knobs(MAX_BATCH_SIZE, token_budget=budget) for budget in size.budgets}
    knobs |= {f"{TARGET * pace * 1e3:.0f} ms between tokens": Knobs(MAX_BATCH_SIZE, tbt_target=TARGET * pace)}
    variants = {name: partial(run_in_process, engine, requests, Setup(choice)) for name, choice in knobs.items()}
    runs = in_turn(variants, size.rounds)
    head = [
        "budget",
        "P50, ms",
        "P99, ms",
        "max, ms",
        "tokens meanwhile",
        "TTFT of streams, s",
        "TTFT of the prompt, s",
    ]
    return (
        f"{engine.figures.numerics}; {size.streams} streams, which alone have {pace * 1e3:.0f} ms between tokens; then "
        f"a prompt of {size.prompt:,} tokens arrives. The time between the streams' tokens from there to its first; "
        f"{size.rounds} rounds in turn. {agreement(engine, runs, check, 5)}\n\n"
        + table(head, [[name, *cells(rounds)] for name, rounds in runs.items()])
    )


def cells(runs: list[Run]) -> list[str]:
    gaps = [gap for run in runs for gap in gaps_meanwhile(run)]
    times = [median(gaps), quantile(gaps, 0.99), max(gaps)] if gaps else []  # no token came meanwhile
    first = [answer.ttft for run in runs for answer in run.answers[:-1]]
    prompt = spread([run.answers[-1].ttft for run in runs])
    between = [f"{t * 1e3:,.0f}" for t in times] or ["-"] * 3
    return [*between, f"{len(gaps) / len(runs):.0f}", f"{median(first):.2f}", prompt]


def gaps_meanwhile(run: Run) -> list[float]:
    """The gaps between tokens of the streams from the arrival of the prompt to its first token."""
    *streams, prompt = run.answers
    return [gap for stream in streams for gap in stream.gaps(prompt.arrived, prompt.times[0])]
