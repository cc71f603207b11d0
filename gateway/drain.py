"""How fast those that wait in the pool come to their turn, measured while there is somebody who waits."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from services.overview import Overview

WINDOW = 10.0  # seconds of waiting that are looked at
ENOUGH = 64  # ends that are looked at, in whatever time: a batch of equal outputs ends all at once
MEMORY = 120.0  # seconds after which a measurement says nothing of the present
LEAST_SECONDS, LEAST_ENDS = 3.0, 4  # with less than these nothing is known yet
ENDS = "vllm:request_success|"  # the counters of ends, by reason; a request that is cancelled leaves its place, too


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Between two looks at the pool, at both of which somebody waited."""

    until: float
    seconds: float
    ends: float


class Drain:
    """Sequences per second that leave their places to others.

    Time in which nobody waits does not count: then the pool is as fast as its clients, which says nothing of how fast
    it could be. All times are seconds on one clock.
    """

    def __init__(self) -> None:
        self._stretches: deque[_Stretch] = deque()  # the latest first
        self._last: tuple[float, float, bool] | None = None  # when, ends so far, whether somebody waited

    def observe(self, overview: Overview, now: float) -> None:
        """Take what was read of the pool at the time `now`, later than the one before."""
        ends = sum(value for name, value in overview.counters.items() if name.startswith(ENDS))
        waits = overview.waiting > 0
        last, self._last = self._last, (now, ends, waits)
        if last is not None and ends < last[1]:
            self._stretches.clear()  # another pool, or one that lost its counters
        elif last is not None and waits and last[2] and now > last[0]:
            self._stretches.appendleft(_Stretch(now, now - last[0], ends - last[1]))
        while self._stretches and self._stretches[-1].until < now - MEMORY:
            self._stretches.pop()

    @property
    def rate(self) -> float | None:
        """Sequences per second; None while too little was seen of it."""
        seconds = ends = 0.0
        for stretch in self._stretches:
            seconds, ends = seconds + stretch.seconds, ends + stretch.ends
            if seconds >= WINDOW and ends >= ENOUGH:
                break
        return ends / seconds if seconds >= LEAST_SECONDS and ends >= LEAST_ENDS else None

    def wait(self, ahead: int) -> float | None:
        """Seconds until `ahead` sequences have come to their turn; None where that is not known."""
        rate = self.rate
        return None if rate is None else ahead / rate

    def retry_after(self, excess: int, most: int = 120) -> int:
        """Whole seconds, 1 to `most`, until `excess` of those that wait have come to their turn; 1 if not known."""
        wait = self.wait(excess)
        return 1 if wait is None else min(max(math.ceil(wait), 1), most)
