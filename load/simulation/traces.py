"""The requests of simulated runs: lengths, and when they arrive."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens in, tokens out."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds
    size: Size


def paper(n: int, seed: int = 0) -> list[Size]:
    """The trace of the paper's section 6.2: input ~ U(32, 512), output ~ U(1, 128)."""
    draw = random.Random(seed).randint
    return [Size(draw(32, 512), draw(1, 128)) for _ in range(n)]


def poisson(sizes: list[Size], rate: float, seed: int = 1) -> list[Arrival]:
    """`sizes` in order, at `rate` a second. Another rate with the same seed is the same trace, stretched, as in the
    paper's section 6."""
    draw = random.Random(seed).expovariate
    times = itertools.accumulate(draw(1.0) for _ in sizes)
    return [Arrival(at / rate, size) for at, size in zip(times, sizes, strict=True)]


def at_once(sizes: list[Size]) -> list[Arrival]:
    """All at second 0: what comes of it is the most that can be served."""
    return [Arrival(0.0, size) for size in sizes]
