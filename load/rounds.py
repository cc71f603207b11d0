"""Rounds: variants run in turn, several times, so that what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(variants: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each variant returned, round by round."""
    done: dict[str, list[T]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            gc.collect()
            done[name].append(run())
    return done


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median over the rounds, with the least and the most."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of them lies: one of them, the next one up."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
