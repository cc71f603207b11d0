"""Lookahead: the next iteration is sent before the result is back, on the model's engine and on the null engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from load.bench.knobs import Oracle, agreement, story_prompts
from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_exact_engine
from load.report import in_turn, spread, table
from load.stock import oracle
from load.trace import Request, Run
from load.workloads import ending
from services.engine.null import NullEngine
from services.scheduling import Knobs


@dataclass(frozen=True, slots=True)
class Size:
    batches: tuple[int, ...] = (1, 8, 32)
    tokens: int = 48  # of each request; every second request stops at half of them
    null_tokens: int = 512
    rounds: int = 2


def run(options: Options) -> str:
    size = Size()
    prompts = story_prompts(options, max(size.batches))
    return report(load_exact_engine(options), oracle(options), size, prompts)


def report(engine: Engine, check: Oracle | None, size: Size, prompts: Sequence[list[int]]) -> str:
    null = NullEngine(engine.figures)
    rows, words = [], []
    for name, one, tokens in (("model", engine, size.tokens), ("none", null, size.null_tokens)):
        for batch in size.batches:
            requests = some_stop_early(one, prompts[:batch], tokens)
            runs = in_turn(
                {
                    f"lookahead {k}": partial(run_in_process, one, requests, Setup(Knobs(batch, lookahead=k)))
                    for k in (0, 1)
                },
                size.rounds,
            )
            words.append(f"{name}, {batch}: {agreement(one, runs, None if one is null else check, 1)}")
            rows.append([name, batch, *cells(*runs.values())])
    head = ["engine", "requests", "tokens/s, off", "on", "on / off", "engine waits, off", "on", "tokens wasted, on"]
    return (
        f"{engine.figures.numerics}; {size.tokens} tokens each ({size.null_tokens} without a model), of which a stop "
        f"token halves every other answer; {size.rounds} rounds in turn, medians.\n\n{table(head, rows)}\n\n"
        + "\n".join(f"- {line}" for line in words)
    )


def some_stop_early(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> list[Request]:
    """Requests of which every second has a stop token, chosen from its own output."""
    requests = [Request(prompt, tokens) for prompt in prompts]
    outputs = run_in_process(engine, requests, Setup(Knobs(len(requests)))).outputs
    return [
        ending(request, output, tokens // 2) if i % 2 == 1 else request
        for i, (request, output) in enumerate(zip(requests, outputs, strict=True))
    ]


def cells(off: Sequence[Run], on: Sequence[Run]) -> list[str]:
    gain = median(b.throughput / a.throughput for a, b in zip(off, on, strict=True))
    waits = (median(waiting(run) for run in runs) for runs in (off, on))
    return [
        *(spread([run.throughput for run in runs]) for runs in (off, on)),
        f"{gain:.3f}",
        *(f"{share:.1%}" for share in waits),
        f"{median(run.wasted for run in on):.0f}",
    ]


def waiting(run: Run) -> float:
    """The share of the time in which the engine had no iteration to run."""
    return 1 - sum(ran.seconds for ran in run.ran) / run.seconds
