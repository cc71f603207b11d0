"""What became of the requests of a simulated run, and the figures that papers report."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field


@dataclass(slots=True)
class Served:
    """One request: when it was submitted, and when each of its tokens came to its user."""

    prompt: int
    submitted: float
    times: list[float] = field(default_factory=list)

    @property
    def latency(self) -> float:
        return self.times[-1] - self.submitted

    @property
    def normalized_latency(self) -> float:
        """Seconds for each generated token, waiting included (paper, section 6.2)."""
        return self.latency / len(self.times)

    @property
    def first(self) -> float:
        """Time to first token."""
        return self.times[0] - self.submitted


@dataclass(frozen=True, slots=True)
class Window:
    """The seconds of a run that are measured, where it has no end of its own."""

    begin: float
    end: float

    def __contains__(self, at: float) -> bool:
        return self.begin <= at < self.end

    def token_throughput(self, served: list[Served]) -> float:
        """Output tokens/s."""
        return sum(at in self for one in served for at in one.times) / (self.end - self.begin)

    def gaps(self, served: list[Served]) -> list[float]:
        """Times between tokens."""
        pairs = (pair for one in served for pair in itertools.pairwise(one.times))
        return [later - earlier for earlier, later in pairs if later in self]

    def firsts(self, served: list[Served]) -> list[float]:
        """Times to first token."""
        return [one.first for one in served if one.times and one.times[0] in self]


def percentile(values: list[float], percent: float) -> float:
    """The smallest of `values` that `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def request_throughput(served: list[Served]) -> float:
    """Requests/s, from the first submission to the last token."""
    return len(served) / _span(served)


def median_normalized_latency(served: list[Served]) -> float:
    return statistics.median(one.normalized_latency for one in served)


def _span(served: list[Served]) -> float:
    return max(one.times[-1] for one in served) - min(one.submitted for one in served)
