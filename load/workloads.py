"""The traces that benchmarks and tests run: requests of exact lengths, all there at once unless they say when."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

FILLER = 5  # a token id every vocabulary has


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a trace: `prompt` token ids in, exactly `max_new_tokens` out (greedy, EOS ignored), or fewer where
    one of `stop_token_ids` comes earlier; that one is the last.

    It arrives `at` seconds after the trace begins. Class and TTFT target are those of `Submission`.
    """

    prompt: list[int]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    at: float = 0.0
    priority: int = 0
    ttft: float = 0.0


def paper(n: int = 64, seed: int = 0) -> list[Job]:
    """The paper's trace (section 6.2): input ~ U(32, 512), output ~ U(1, 128).

    With seed 0, 64 requests have 17,553 input and 3,871 output tokens. Per request the input's length is drawn
    first, then its ids from 10 to 40,000, then the output's length.
    """
    draw = random.Random(seed).randint
    return [Job([draw(10, 40_000) for _ in range(draw(32, 512))], draw(1, 128)) for _ in range(n)]


def single() -> list[Job]:
    """One lone request, 128 in and 128 out."""
    return [Job([FILLER] * 128, 128)]


def equal_size(n: int = 16) -> list[Job]:
    """All alike, 128 in and 128 out: the control, where iteration-level scheduling gains nothing."""
    return [Job([FILLER] * 128, 128) for _ in range(n)]


def short_long_mix(n: int = 16) -> list[Job]:
    """Short (32 in, 32 out) and long (512 in, 128 out) in turn, short first."""
    return [Job([FILLER] * 32, 32) if i % 2 == 0 else Job([FILLER] * 512, 128) for i in range(n)]


def any_prompt(length: int, seed: int) -> list[int]:
    """Token ids that have nothing in common with those of another seed; of any vocabulary of 300 and more."""
    draw = random.Random(seed).randint
    return [draw(10, 250) for _ in range(length)]


def ending(job: Job, output: list[int], length: int) -> Job:
    """`job`, whose tokens are `output`, with the stop token id that lets it end closest to `length` tokens."""
    stop = min(output, key=lambda token: abs(output.index(token) + 1 - length))
    return replace(job, stop_token_ids=(stop,))
