"""Defaults: chat-like loads under --preset paper, under the defaults, and with one setting changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from actors.knobs import knobs_of
from load.bench.knobs import Oracle, agreement, increment_seconds, story_prompts
from load.bench.parts import preemption
from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_engine
from load.report import in_turn, spread, table
from load.trace import Request, Run
from load.workloads import any_prompt, paper, single
from services.settings.settings import Settings

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"preset": "paper"},
    "default": {},
    "tbt_target 0.1": {"tbt_target": 0.1},
    "tbt_target 0.5": {"tbt_target": 0.5},
    "token_budget 512": {"token_budget": 512, "tbt_target": 0},
    "reserve": {"admission": "reserve"},
    "lookahead 1": {"lookahead": 1},
    "max_batch_size 64": {"max_batch_size": 64},
}


LIMITED = preemption.Size(kv_blocks=120)


@dataclass(frozen=True, slots=True)
class Size:
    """`long prompt`: `streams` of `stream_tokens` run when a prompt of `prompt` tokens arrives, and then `later` short
    requests, one every `pause` seconds. `short answers`: `limited` with few blocks. `system prompt`: `users` send
    questions of `question` tokens after `system` tokens in common, and get `answer` tokens."""

    streams: int = 8
    stream_tokens: int = 120
    prompt: int = 6000
    later: int = 6
    pause: float = 0.4
    limited: preemption.Size = LIMITED
    users: int = 24
    system: int = 512
    question: int = 48
    answer: int = 48
    rounds: int = 2


@dataclass(frozen=True, slots=True)
class Load:
    requests: Sequence[Request]
    kv_blocks: int = 0


def run(options: Options) -> str:
    engine, size = load_engine(options), Size()
    stories = story_prompts(options, size.limited.requests)
    return report(engine, None, size, loads(engine, size, stories), VARIANTS)


def loads(engine: Engine, size: Size, stories: Sequence[list[int]]) -> dict[str, Load]:
    """The loads by name. `stories`: prompts with long answers."""
    limited = preemption.short_answers(engine, size.limited, stories)
    system = any_prompt(size.system, 0)
    users = [Request(system + any_prompt(size.question, 1 + i), size.answer) for i in range(size.users)]
    return {
        "a long prompt": Load(long_prompt(engine, size)),
        "short answers": Load(limited, size.limited.kv_blocks),
        "a system prompt": Load(users),
        "paper": Load(paper()),
        "single": Load(single()),
    }


def long_prompt(engine: Engine, size: Size) -> list[Request]:
    """The streams, the requests that arrive later, and the long prompt, which is the last."""
    arrival = 16 * increment_seconds(engine, size.streams)
    streams = [Request(any_prompt(32, 100 + i), size.stream_tokens) for i in range(size.streams)]
    later = [Request(any_prompt(32, 200 + i), 8, at=arrival + (i + 1) * size.pause) for i in range(size.later)]
    return [*streams, *later, Request(any_prompt(size.prompt, 300), 8, at=arrival)]


def report(
    engine: Engine, check: Oracle | None, size: Size, workloads: dict[str, Load], variants: dict[str, dict[str, Any]]
) -> str:
    rows, words = [], []
    for name, load in workloads.items():
        runs = in_turn({how: partial(measure, engine, load, given) for how, given in variants.items()}, size.rounds)
        words.append(f"{name}: {agreement(engine, runs, check, 2)}")
        rows += [[name, how, *cells(rounds)] for how, rounds in runs.items()]
    head = ["load", "settings", "seconds", "output tokens/s", "longest gap, s", "TTFT, s", "longest TTFT, s"]
    return (
        f"{engine.figures.numerics}; {size.rounds} rounds in turn, medians, with the least and the most.\n\n"
        f"{table([*head, 'TTFT of the last, s', 'preemptions'], rows)}\n\n" + "\n".join(f"- {line}" for line in words)
    )


def measure(engine: Engine, load: Load, given: dict[str, Any]) -> Run:
    knobs = knobs_of(Settings(**given), engine.figures)
    return run_in_process(engine, load.requests, Setup(knobs, kv_blocks=load.kv_blocks))


def cells(runs: Sequence[Run]) -> list[str]:
    """Gaps are those of all requests; "the last" is the request that is listed last, the long prompt in that load."""
    gaps = [max(gap for answer in run.answers for gap in answer.gaps(0.0, run.seconds)) for run in runs]
    first = [[answer.ttft for answer in run.answers] for run in runs]
    longest = [max(values[:-1] or values) for values in first]
    return [
        spread([run.seconds for run in runs]),
        f"{median(run.throughput for run in runs):.1f}",
        spread(gaps, 2),
        f"{median(median(values) for values in first):.2f}",
        spread(longest, 2),
        f"{median(values[-1] for values in first):.2f}",
        f"{median(run.preemptions for run in runs):.0f}",
    ]
