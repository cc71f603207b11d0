"""How an idle engine sleeps: the states that it goes down one after the other, and when it is needed again.

A seat keeps its scheduler in each state, and requests wait in the pool. So a request for an engine that sleeps is one
that waits, and the bell of its seat wakes the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from services.overview import Overview, SleepLevel


@dataclass(frozen=True, slots=True)
class SleepRule:
    """An engine goes down a state each time that it has been idle for `after` seconds (0: never), to `deepest`."""

    after: float = 0.0
    deepest: SleepLevel = SleepLevel.COLD

    def level(self, idle: float) -> SleepLevel:
        """The state after so many seconds without a request."""
        return SleepLevel(min(int(idle / self.after), self.deepest)) if self.after else SleepLevel.AWAKE

    def due(self, idle: float) -> float:
        """Seconds until the next state; infinite if there is none."""
        level = self.level(idle)
        return (level + 1) * self.after - idle if self.after and level < self.deepest else inf


def is_needed(overview: Overview, seat: str, waited: float, delay: float) -> bool:
    """Whether the engine of `seat`, which has no weights, is to load them.

    Of a pool without an engine that has its weights, the first seat wakes at once. Every other one wakes when requests
    were seen to wait for `delay` seconds; they have for `waited`.
    """
    if not overview.waiting:
        return False
    first = min(each.name for each in overview.seats if each.alive or each.name == seat)
    return waited >= delay or (seat == first and not overview.awake)


def reason_to_wait(overview: Overview | None) -> str:
    """What requests wait for before one can run; empty if an engine has its weights."""
    if overview is None or overview.level is None:
        return ": ".join(filter(None, ("no engine is ready", overview.failure if overview else "")))
    if overview.awake:
        return ""
    took = max(seat.gauges.get("waking_seconds", 0.0) for seat in overview.seats if seat.ready)
    last = f", which took {took:.1f} s last time" if took else ""
    return f"the model was {overview.level.name.lower()} and wakes up{last}"
