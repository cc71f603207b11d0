"""What the reports of all programs share: tables, the machine, and variants that run in turn."""

from __future__ import annotations

import gc
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; all columns except the first are right-aligned."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine() -> str:
    """A line that describes this machine, for the head of a report."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_processor()}, {cpus} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def _processor() -> str:
    """Its name, with its instructions for matrices where it has such; the architecture where there is no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    amx = " with AMX" if "amx_tile" in about.get("flags", "").split() else ""
    return (about.get("model name") or platform.machine()) + amx


T = TypeVar("T")


def in_turn(variants: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run all variants in each round, so that what disturbs the machine disturbs all of them; returns the results."""
    done: dict[str, list[T]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            gc.collect()
            done[name].append(run())
    return done


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median with the minimum and the maximum."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def quantile(values: Sequence[float], q: float) -> float:
    """The quantile `q` of `values`: one of them, the larger one where `q` falls between two."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
