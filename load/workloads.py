"""Traces and prompts that benchmarks, simulations and tests use."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from load.trace import Request

FILLER = 5  # a token id which every vocabulary has


def paper(n: int = 64, seed: int = 0) -> list[Request]:
    """The paper's trace (section 6.2): input ~ U(32, 512), output ~ U(1, 128), all there at once.

    With seed 0, 64 requests have 17,553 input and 3,871 output tokens. For each request the length of its input is
    drawn first, then the input's ids from 10 to 40,000, then the length of its output.
    """
    draw = random.Random(seed).randint
    return [Request([draw(10, 40_000) for _ in range(draw(32, 512))], draw(1, 128)) for _ in range(n)]


def paper_lengths(n: int, seed: int = 0) -> list[Request]:
    """Requests of the lengths of `paper`, where only these matter: no ids are drawn, so the lengths are other ones."""
    draw = random.Random(seed).randint
    return [sized(draw(32, 512), draw(1, 128)) for _ in range(n)]


def sized(prompt: int, output: int) -> Request:
    """A request with these numbers of tokens."""
    return Request([FILLER] * prompt, output)


def alike(prompt: int, output: int, n: int) -> list[Request]:
    """Requests that all have these numbers of tokens."""
    return [sized(prompt, output)] * n


def single() -> list[Request]:
    """One lone request, 128 tokens in and 128 out."""
    return [sized(128, 128)]


def poisson(requests: Sequence[Request], rate: float, seed: int = 1) -> list[Request]:
    """`requests` in order, as Poisson arrivals at `rate` per second. Another rate with the same seed is the same trace
    stretched in time, as in section 6 of the paper."""
    draw = random.Random(seed).expovariate
    times = itertools.accumulate(draw(1.0) for _ in requests)
    return [replace(request, at=at / rate) for at, request in zip(times, requests, strict=True)]


def any_prompt(length: int, seed: int) -> list[int]:
    """Token ids that share no prefix with those of another seed, for any vocabulary of at least 300 entries."""
    draw = random.Random(seed).randint
    return [draw(10, 250) for _ in range(length)]


def prompted(trace: Sequence[Request]) -> list[Request]:
    """The trace with prompts of the same lengths that share no prefix."""
    return [replace(request, prompt=any_prompt(len(request.prompt), seed)) for seed, request in enumerate(trace)]


QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "How many days are there in a leap year?",
    "Write one sentence about the sea.",
    "What do bees make?",
    "Explain in two sentences why the sky is blue.",
    "Give me a title for a story about a lighthouse keeper.",
    "Which planet is closest to the sun?",
    "List four animals that can swim.",
    "What is the opposite of cold?",
    "Tell me a short fact about penguins.",
    "How does a bicycle stay upright?",
)

# prompts of completions: an instruct model ends a text at once that is a question
BEGINNINGS = (
    "Once upon a time there was a lighthouse keeper who",
    "The three primary colours are",
    "The capital of France is Paris, and the capital of Spain is",
    "To make a cup of tea, first",
    "The sea was calm that morning, and",
    "Bees make honey because",
)

WORDS = ("the", "sea", "was", "calm", "and", "a", "small", "boat", "went", "slowly", "out")


def text_of(tokens: int) -> str:
    """English text of about `tokens` tokens; in most vocabularies each of these words is one token."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens))
