"""Counters: what a process has counted, as increments of series in the pool."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from urllib.parse import quote, unquote

from services.metrics.declared import COUNTERS, HISTOGRAMS
from services.requests import DEFAULT_TENANT

OTHER = "other"  # the label of tenants without metrics of their own


class Counters:
    """The increments of a process since they were last taken.

    A series is named `metric|value of its first label|...`; the buckets and the sum of a histogram are
    `metric_bucket|values|bound` and `metric_sum|values`.
    """

    def __init__(self, tenants: Collection[str] = ()) -> None:
        """The default tenant and each of `tenants` have metrics of their own. The metrics of all other tenants are
        added up, so that the number of series does not grow with the number of tenants."""
        self._tenants = frozenset({DEFAULT_TENANT, *tenants})
        self._sums: dict[str, float] = defaultdict(float)

    def inc(self, name: str, by: float = 1, **labels: str) -> None:
        """Add `by` to a counter."""
        series = _counter_series(name, *self._bounded(labels)) if labels else _counter_series(name)
        self._sums[series] += by

    def observe(self, name: str, value: float, times: int = 1, **labels: str) -> None:
        """Count `value` in a histogram, `times` times."""
        series = _histogram_series(name, *self._bounded(labels)) if labels else _histogram_series(name)
        buckets, counts, total = series
        self._sums[counts[bisect_left(buckets, value)]] += times
        self._sums[total] += value * times

    def take(self) -> dict[str, float]:
        """Return the increments since the last call."""
        taken, self._sums = dict(self._sums), defaultdict(float)
        return taken

    def put_back(self, taken: Mapping[str, float]) -> None:
        """Add what `take` returned again, because the pool has not taken it."""
        for series, by in taken.items():
            self._sums[series] += by

    def _bounded(self, labels: dict[str, str]) -> Iterable[tuple[str, str]]:
        """Return the labels with values of which there are few: a tenant without metrics of its own is `other`."""
        if "tenant" in labels and labels["tenant"] not in self._tenants:
            labels["tenant"] = OTHER
        return labels.items()


def values_of(series: str) -> tuple[str, list[str]]:
    """Return the name before the labels of a series, and the values of its labels (and the bound of a bucket)."""
    name, *values = series.split("|")
    return name, [unquote(value) for value in values]


def total(sums: Mapping[str, float], name: str) -> float:
    """Return the sum of a counter over all its labels."""
    return sum(value for series, value in sums.items() if series.partition("|")[0] == name)


def buckets(sums: Mapping[str, float], histogram: str) -> list[float]:
    """Return how often a histogram has counted in each bucket and above the last one, over all labels."""
    found: dict[str, float] = defaultdict(float)
    for series, value in sums.items():
        if series.startswith(f"{histogram}_bucket|"):
            found[series.rpartition("|")[2]] += value
    return [found[str(bound)] for bound in (*HISTOGRAMS[histogram].buckets, "+Inf")]


@cache
def _counter_series(name: str, *labels: tuple[str, str]) -> str:
    return _series(name, COUNTERS[name].labels, labels)


@cache
def _histogram_series(name: str, *labels: tuple[str, str]) -> tuple[tuple[float, ...], list[str], str]:
    """Return the buckets of a histogram, the series that count in each bucket and above the last one, and the series of
    the histogram's sum."""
    histogram = HISTOGRAMS[name]
    counted = _series(f"{name}_bucket", histogram.labels, labels)
    counts = [f"{counted}|{bound}" for bound in (*histogram.buckets, "+Inf")]
    return histogram.buckets, counts, _series(f"{name}_sum", histogram.labels, labels)


def _series(name: str, declared: tuple[str, ...], labels: tuple[tuple[str, str], ...]) -> str:
    values = dict(labels)
    assert set(values) == set(declared), f"{name} has the labels {declared}, not {tuple(values)}"
    return "|".join((name, *(quote(values[label]) for label in declared)))
