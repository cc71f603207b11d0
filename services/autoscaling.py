"""How many engines a load needs, and when the number of engines changes. Plain arithmetic without I/O.

The load is the demand for engines, not what they do: requests that run and that wait, and the KV cache that both need.
It is therefore the same with one engine and with ten, and a constant load leads to one number of engines. What varies
is smoothed as by the stabilization windows of Kubernetes' HorizontalPodAutoscaler: engines are added if every load of
the last `upscale_delay` seconds needed more of them, and removed if none of the last `downscale_delay` seconds needed
as many.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from services.overview import Overview
from services.seats import cluster_of

KV_TARGET = 0.9  # the share of the engines' KV cache that requests may need before an engine is added


@dataclass(frozen=True, slots=True)
class Load:
    """What requests ask of the engines of a cluster.

    `requests` run in the cluster's engines or wait. `tokens` of KV cache are held by the former or needed for the
    prompts of the latter. The KV cache of one engine has `capacity` tokens; 0 before an engine has reported it.
    """

    requests: int
    tokens: float = 0.0
    capacity: float = 0.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """The bounds of the number of engines, and what changes it.

    An engine is added for each `requests_per_engine` requests. Delays are seconds.
    """

    min_engines: int
    max_engines: int
    requests_per_engine: int
    upscale_delay: float
    downscale_delay: float

    def __post_init__(self) -> None:
        assert 1 <= self.min_engines <= self.max_engines
        assert self.requests_per_engine >= 1


def load_of(overview: Overview, cluster: str) -> Load:
    """The load of the engines of `cluster`, whose seats are named `<cluster>/<number>`. All that waits counts, since
    no cluster has claimed it."""
    seats = [seat for seat in overview.seats if cluster_of(seat.name) == cluster]
    living = [(seat, seat.figures.num_slots) for seat in seats if seat.alive and seat.figures]
    held = sum(seat.gauges.get("kv_usage", 0.0) * slots for seat, slots in living)
    return Load(
        requests=overview.waiting + sum(seat.running for seat in seats),
        tokens=held + overview.waiting_tokens,
        capacity=sum(slots for _, slots in living) / len(living) if living else 0.0,
    )


def engines_needed(load: Load, scaling: Scaling) -> int:
    """The number of engines for this load, within the bounds."""
    needed = math.ceil(load.requests / scaling.requests_per_engine)
    if load.capacity > 0:
        needed = max(needed, math.ceil(load.tokens / (KV_TARGET * load.capacity)))
    return max(scaling.min_engines, min(scaling.max_engines, needed))


class EngineCount:
    """The number of engines that is wanted, as the load changes.

    `wanted` engines are wanted at first; it is put within the bounds.
    """

    def __init__(self, scaling: Scaling, wanted: int) -> None:
        self._scaling = scaling
        self._samples: deque[tuple[float, int]] = deque()  # times, and the engines needed from then on
        self.wanted = max(scaling.min_engines, min(scaling.max_engines, wanted))

    def update(self, now: float, load: Load) -> int:
        """Take the load at the time `now` (s, any clock that does not go back) into account; returns `wanted`."""
        self._samples.append((now, engines_needed(load, self._scaling)))
        more = self._within(now, self._scaling.upscale_delay)
        fewer = self._within(now, self._scaling.downscale_delay)
        if more and min(more) > self.wanted:
            self.wanted = min(more)
        elif fewer and max(fewer) < self.wanted:
            self.wanted = max(fewer)
        self._forget(now - max(self._scaling.upscale_delay, self._scaling.downscale_delay))
        return self.wanted

    def _within(self, now: float, delay: float) -> list[int]:
        """All numbers needed in the last `delay` seconds; none if the samples do not go back that far."""
        found = []
        for at, needed in reversed(self._samples):
            found.append(needed)
            if at <= now - delay:
                return found
        return []

    def _forget(self, before: float) -> None:
        """Drop the samples that were superseded at the time `before`."""
        while len(self._samples) > 1 and self._samples[1][0] <= before:
            self._samples.popleft()
