"""The tables of what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from load.bench.engine.quantized_products.measure import Found
from load.report import spread, table


def times_table(found: Mapping[str, Found], row_counts: Sequence[int]) -> str:
    """Microseconds of a product: the median of the rounds, with the least and the most."""
    rows = [[name, *(_time(one.seconds.get(count)) for count in row_counts)] for name, one in found.items()]
    return table(["way", *(f"{count} row{'s' if count > 1 else ''}" for count in row_counts)], rows)


def ratios_table(found: Mapping[str, Found], row_counts: Sequence[int], base: str) -> str:
    """How many times as fast as `base` each is, by medians."""
    rows = []
    for name, one in found.items():
        pairs = [(found[base].seconds.get(count), one.seconds.get(count)) for count in row_counts]
        rows.append([name, *(f"{_median(first) / _median(own):.2f}" if first and own else "-" for first, own in pairs)])
    return table(["way", *map(str, row_counts)], rows)


def properties_table(found: Mapping[str, Found]) -> str:
    """Bytes, errors and bits."""
    rows = []
    for name, one in found.items():
        bits = "yes" if not one.differing else f"no: others at {', '.join(map(str, one.differing))}"
        errors = (f"{one.largest_error:.2%}", f"{one.mean_error:.3%}")
        rows.append([name, f"{one.bytes / 1e6:.2f}", *errors, bits, max(one.seconds)])
    head = ["way", "MB read", "largest error", "mean error", "same bits at all row counts", "up to rows"]
    return table(head, rows)


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds)


def _time(seconds: Sequence[float] | None) -> str:
    if not seconds:
        return "-"
    micros = [one * 1e6 for one in seconds]
    return spread(micros, max(0, 2 - int(math.log10(max(1.0, _median(micros))))))
