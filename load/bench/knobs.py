"""Agreement: greedy tokens are the same under all knobs, and those that stock `generate()` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from load.answers import Run
from load.in_process import Engine
from load.workloads import Job

Oracle = Callable[[Job], list[int]]


def agreement(engine: Engine, runs: Mapping[str, Sequence[Run]], oracle: Oracle | None, checked: int = 4) -> str:
    """A sentence: how many outputs are equal in all of `runs`, and how many of `checked`, evenly chosen, equal the
    oracle's. Raises AssertionError for one that is not, unless the dtype is a short one: there another order of
    additions may turn the choice between two tokens."""
    first = next(iter(runs.values()))[0]
    unequal = [
        f"{name}, job {number}: {answer.tokens}, not {expected.tokens}"
        for name, variant in runs.items()
        for run in variant
        for number, (answer, expected) in enumerate(zip(run.answers, first.answers, strict=True))
        if answer.tokens != expected.tokens
    ]
    count = sum(len(run.answers) for variant in runs.values() for run in variant)
    words = f"{count - len(unequal):,} of {count:,} outputs are equal over variants and rounds"
    if oracle:
        sample = first.answers[:: max(1, len(first.answers) // checked)][:checked]
        made = [oracle(answer.job) for answer in sample]
        wrong = [
            f"job of {len(answer.job.prompt)} tokens: {answer.tokens}, generate() gives {tokens}"
            for answer, tokens in zip(sample, made, strict=True)
            if answer.tokens != tokens
        ]
        words += f", {len(sample) - len(wrong)} of {len(sample)} checked equal `generate()`"
        unequal += wrong
    assert not unequal or _short(engine.figures.numerics), f"{words}: {unequal[0]}"
    return words + "."


def _short(numerics: str) -> bool:
    return "float16" in numerics  # also in bfloat16
