"""What a benchmark measures in one round, and the tables of several rounds.

A part that has figures is a module with `ABOUT` (what its tables show) and `measure(options) -> Figures`.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence

from load.options import Options
from load.report import table

Table = dict[str, dict[str, float]]  # the value by row and column
Figures = dict[str, Table]  # the tables by their titles


def rounds_of(measure: Callable[[Options], Figures], options: Options, about: str, rounds: int) -> str:
    """Measure so many times; returns what is measured and its tables."""
    found = []
    for _ in range(rounds):
        gc.collect()
        found.append(measure(options))
    return report(about, found)


def report(about: str, rounds: Sequence[Figures]) -> str:
    """`about` and all tables. A cell has the median and, of several rounds, the minimum and the maximum."""
    parts = [f"{about} {_rounds(len(rounds))}"]
    for title in _in_order([list(figures) for figures in rounds]):
        tables = [figures[title] for figures in rounds if title in figures]
        rows = _in_order([list(found) for found in tables])
        columns = _in_order([list(cells) for found in tables for cells in found.values()])
        body = [[row, *(cell(_values(tables, row, column)) for column in columns)] for row in rows]
        parts.append(f"{title}:\n\n{table(['', *columns], body)}")
    return "\n\n".join(parts)


def values(rounds: Sequence[Figures], title: str, row: str, column: str) -> list[float]:
    """What the rounds measured there; empty if none did."""
    return _values([figures.get(title, {}) for figures in rounds], row, column)


def cell(values: Sequence[float]) -> str:
    """The median with the minimum and the maximum, or the only value; a dash without any."""
    if not values:
        return "-"
    middle = statistics.median(values)
    digits = _digits(middle)
    low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return f"{middle:,.{digits}f}" if low == high else f"{middle:,.{digits}f} ({low} to {high})"


def _rounds(count: int) -> str:
    return "One round." if count == 1 else f"{count} rounds: median, minimum and maximum."


def _digits(value: float) -> int:
    """So many decimals that about three digits are shown."""
    return 3 if abs(value) < 2 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0


def _values(tables: Sequence[Table], row: str, column: str) -> list[float]:
    return [found[row][column] for found in tables if column in found.get(row, {})]


def _in_order(lists: Sequence[Sequence[str]]) -> list[str]:
    """All names, each once, in the order in which they first come."""
    return list(dict.fromkeys(name for names in lists for name in names))
