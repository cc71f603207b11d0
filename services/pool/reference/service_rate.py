"""How fast sequences of a tenant are claimed while some wait, on plain objects."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

FEWEST = 16  # sequences; what became of fewer says nothing of a rate
TOO_SOON = 2.0  # seconds after which it says something that few were claimed
REMEMBERED = 60.0  # seconds, about, that a rate is remembered while nothing waits


@dataclass(slots=True)
class ServiceRate:
    """`claimed` sequences in `took` seconds in which some waited all the time, each sum fading with what is claimed.
    Lines of batches do not count. `since`: the last claim, or when some began to wait."""

    backlog: int = 0  # sequences that wait
    since: float = 0.0
    claimed: float = 0.0
    took: float = 0.0

    def note(self, claims: int, backlog: int, running: int, now: float, resumed: float) -> None:
        """After a call that claimed so many, and left so many waiting and running. A claim that leaves nothing waiting
        shows no rate: it would have taken more."""
        begins = backlog > 0 and not self.backlog
        self.backlog, taken = backlog, self._elapsed(now, resumed)
        if not claims and not begins:
            return
        keep = exp(min(0.0, self.since - now) / REMEMBERED) if begins else 1.0
        keep *= exp(-claims / (2 * _most(running)))
        self.claimed, self.took = keep * self.claimed, keep * self.took
        if claims and backlog:
            self.claimed, self.took = self.claimed + claims, self.took + (0.0 if begins else taken)
        self.since = now

    def known(self, running: int) -> bool:
        """Whether enough were claimed: while fewer than run were, the rate may be far less."""
        return self.claimed >= _most(running)

    def expected_wait(self, before: int, running: int, now: float, resumed: float) -> float:
        """Seconds until so many are claimed, by Little's law. Where no rate is known: at least so many, since at a
        greater rate all that run had ended by now; none, if that is too soon to say."""
        took = self.took + self._elapsed(now, resumed)
        if took < TOO_SOON and not self.known(running):
            return 0.0
        return before * took / max(self.claimed, _most(running))

    def _elapsed(self, now: float, resumed: float) -> float:
        """Since the last claim, less time in which the pool's server was away."""
        return max(0.0, now - max(self.since, resumed))


def _most(running: int) -> int:
    return max(FEWEST, running)
