"""What the benchmarks of the scheduler's settings share: an engine's pace, prompts, and the check that tokens agree."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from load.in_process import Engine, Setup, run_in_process
from load.options import Options, model_folder
from load.trace import Request, Run
from load.workloads import FILLER
from services.scheduling import Knobs
from services.text import Tokenizer

Oracle = Callable[[Request], list[int]]

PACE_TOKENS = 12  # of each request that the pace is measured with
HEROES = ("a lighthouse keeper", "an old sailor", "a young baker", "a lost robot", "a curious fox", "a tired teacher")
THINGS = ("a storm", "a hidden door", "a long journey", "a forgotten letter", "a strange guest", "a broken clock")


def agreement(engine: Engine, runs: Mapping[str, Sequence[Run]], oracle: Oracle | None, checked: int = 4) -> str:
    """A sentence that tells how many outputs are equal in all `runs`, and how many of `checked` evenly chosen ones
    equal the oracle's. Raises AssertionError if one is not equal, unless the dtype is a 16-bit one: there another order
    of additions may choose another token."""
    first = next(iter(runs.values()))[0]
    unequal = [
        f"{name}, request {number}: {answer.tokens}, not {expected.tokens}"
        for name, variant in runs.items()
        for run in variant
        for number, (answer, expected) in enumerate(zip(run.answers, first.answers, strict=True))
        if answer.tokens != expected.tokens
    ]
    count = sum(len(run.answers) for variant in runs.values() for run in variant)
    words = f"{count - len(unequal):,} of {count:,} outputs are equal over variants and rounds"
    if oracle:
        sample = first.answers[:: max(1, len(first.answers) // checked)][:checked]
        made = [oracle(answer.request) for answer in sample]
        wrong = [
            f"request of {len(answer.request.prompt)} tokens: {answer.tokens}, generate() gives {tokens}"
            for answer, tokens in zip(sample, made, strict=True)
            if answer.tokens != tokens
        ]
        words += f", {len(sample) - len(wrong)} of {len(sample)} checked equal `generate()`"
        unequal += wrong
    assert not unequal or _is_short(engine.figures.numerics), f"{words}: {unequal[0]}"
    return words + "."


def _is_short(numerics: str) -> bool:
    return "float16" in numerics  # or bfloat16


def increment_seconds(engine: Engine, requests: int, prompt: int = 32) -> float:
    """The median seconds of an iteration of so many increment requests; the first iterations warm the engine up."""
    run = run_in_process(engine, [Request([FILLER] * prompt, PACE_TOKENS)] * requests, Setup(Knobs(requests)))
    return statistics.median(ran.seconds for ran in run.ran if ran.computed == ran.requests == requests)


def story_prompts(options: Options, count: int) -> list[list[int]]:
    """Token ids of `count` different chats that ask for a story; raises ValueError if there are not so many.

    Greedy answers to them are long and do not repeat themselves, so that a stop token can end them anywhere.
    """
    texts = [f"Tell me a story about {hero} and {thing}." for hero, thing in product(HEROES, THINGS)]
    if count > len(texts):
        raise ValueError(f"{count} prompts, there are {len(texts)}")
    tokenizer = Tokenizer.load(model_folder(options))
    return [
        tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": text}]), add_special_tokens=False)
        for text in texts[:count]
    ]
