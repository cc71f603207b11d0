"""What the reports of all programs share: tables, figures, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path

Table = dict[str, dict[str, float]]  # the value by row and column
Figures = dict[str, Table]  # the tables by their titles


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; all columns except the first are right-aligned."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def tables(figures: Figures) -> list[str]:
    """Each table with its title. Columns of whole numbers have no decimals, other figures about three digits."""
    found = []
    for title, rows in figures.items():
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        counts = {name for name in columns if all(float(cells.get(name, 0.0)).is_integer() for cells in rows.values())}
        body = [[row, *(_cell(cells.get(name), name in counts) for name in columns)] for row, cells in rows.items()]
        found.append(f"{title}:\n\n{table(['', *columns], body)}")
    return found


def _cell(value: float | None, whole: bool) -> str:
    if value is None:
        return "-"
    size = abs(value)
    digits = 0 if whole else 3 if size < 2 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{digits}f}"


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


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest of `values` that the share `q` of them does not exceed."""
    return sorted(values)[max(0, ceil(q * len(values)) - 1)]
