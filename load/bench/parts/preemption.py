"""Preemption: blocks allocated on demand against blocks reserved, with long limits, short answers and few blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from load.bench.knobs import Oracle, agreement, story_prompts
from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_exact_engine
from load.report import in_turn, spread, table
from load.stock import oracle
from load.trace import Request, Run
from load.workloads import ending
from services.scheduling import Knobs


@dataclass(frozen=True, slots=True)
class Size:
    """`lengths`: the tokens of the answers in turn, each of which may have up to `limit`."""

    requests: int = 24
    limit: int = 512
    lengths: tuple[int, ...] = (8, 96, 16, 88, 24, 96)
    kv_blocks: int = 80
    rounds: int = 2


def run(options: Options) -> str:
    size = Size()
    prompts = story_prompts(options, size.requests)
    return report(load_exact_engine(options), oracle(options), size, prompts)


def report(engine: Engine, check: Oracle | None, size: Size, prompts: Sequence[list[int]]) -> str:
    requests = short_answers(engine, size, prompts)
    setups = {
        "reserve": Setup(Knobs(size.requests), kv_blocks=size.kv_blocks),
        "on_demand": Setup(Knobs(size.requests, admission="on_demand"), kv_blocks=size.kv_blocks),
    }
    runs = in_turn(
        {name: partial(run_in_process, engine, requests, setup) for name, setup in setups.items()}, size.rounds
    )
    head = ["admission", "seconds", "output tokens/s", "requests at once", "most", "iterations", "preemptions"]
    lengths = [len(output) for output in runs["reserve"][0].outputs]
    return (
        f"{engine.figures.numerics}; {len(requests)} requests, about {len(prompts[0])} tokens in, at most {size.limit} "
        f"out, of which a stop token leaves {min(lengths)} to {max(lengths)}, {median(lengths):.0f} in the middle; "
        f"{size.kv_blocks} KV blocks; {size.rounds} rounds in turn, medians. {agreement(engine, runs, check, 6)}\n\n"
        + table([*head, "tokens recomputed"], [[name, *cells(rounds)] for name, rounds in runs.items()])
    )


def short_answers(engine: Engine, size: Size, prompts: Sequence[list[int]]) -> list[Request]:
    """Requests that end long before their limit, each by a stop token chosen from its own output."""
    longest = max(size.lengths)
    requests = [Request(prompt, longest) for prompt in prompts[: size.requests]]
    outputs = run_in_process(engine, requests, Setup(Knobs(size.requests))).outputs
    return [
        replace(ending(request, output, size.lengths[i % len(size.lengths)]), max_new_tokens=size.limit)
        for i, (request, output) in enumerate(zip(requests, outputs, strict=True))
    ]


def cells(runs: Sequence[Run]) -> list[str]:
    most = max(ran.requests for run in runs for ran in run.ran)
    counts = [[run.iterations for run in runs], [r.preemptions for r in runs], [r.recomputed for r in runs]]
    return [
        spread([run.seconds for run in runs]),
        spread([run.throughput for run in runs]),
        f"{median(run.mean_batch_size for run in runs):.1f}",
        str(most),
        *(f"{median(values):.0f}" for values in counts),
    ]
