"""What the pool says of a cluster over time: engines that are wanted, that are ready, and what waits and runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from services.errors import PoolUnavailable
from services.pool.pool import RequestPool

INTERVAL = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """The pool at a Unix time. `owners` has the address of each ready engine's scheduler, by seat."""

    time: float
    wanted: int
    owners: dict[str, str]
    waiting: int
    running: dict[str, int]  # by seat
    first_iterations: dict[str, float]  # Unix times by seat; 0 before the owner's first

    @property
    def engines(self) -> int:
        return len(self.owners)


@dataclass(slots=True)
class Watch:
    """The moments of a run, each `INTERVAL` seconds."""

    moments: list[Moment] = field(default_factory=list)

    async def run(self, pool: RequestPool) -> None:
        """Add moments until cancelled."""
        while True:
            with contextlib.suppress(PoolUnavailable):
                self.moments.append(await moment(pool))
            await asyncio.sleep(INTERVAL)

    def first(self, since: float, holds: Callable[[Moment], bool]) -> float | None:
        """Seconds from the Unix time `since` until `holds` of a moment; None if it never does."""
        times = (m.time for m in self.moments if m.time >= since and holds(m))
        found = next(times, None)
        return None if found is None else found - since


async def moment(pool: RequestPool) -> Moment:
    """Raises PoolUnavailable."""
    overview = await pool.overview()
    ready = [seat for seat in overview.seats if seat.alive and seat.gauges.get("ready") == 1]
    return Moment(
        time=time.time(),
        wanted=next(iter(overview.wanted.values()), 0),  # there is one cluster
        owners={seat.name: seat.owner.partition(":")[0] for seat in ready},
        waiting=overview.waiting,
        running={seat.name: seat.running for seat in overview.seats},
        first_iterations={seat.name: seat.gauges.get("recovery_first_iteration", 0.0) for seat in ready},
    )
