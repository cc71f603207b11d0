"""ServiceRate: how fast sequences are claimed while others wait. The counterpart of the Lua fragment `service_rate`."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

MIN_SAMPLE = 16  # sequences; fewer do not show a rate
MIN_TIME = 2.0  # seconds after which few claims show that the rate is low
IDLE_DECAY = 60.0  # seconds; time constant with which a rate is forgotten while nothing waits


@dataclass(slots=True)
class ServiceRate:
    """How fast sequences of a tenant are claimed while others of it wait: `claimed` sequences in `took` seconds.

    Both sums decay with each claim. Lines of batches do not count. `since`: the time of the last claim, or at which
    sequences began to wait.
    """

    backlog: int = 0  # sequences that wait
    since: float = 0.0
    claimed: float = 0.0
    took: float = 0.0
    patience: float = inf  # seconds that requests may wait, as clients are seen to wait

    def record(self, claims: int, backlog: int, running: int, now: float, resumed: float) -> None:
        """Add the `claims` of a call that left `backlog` sequences waiting and `running` ones running.

        A claim that leaves nothing waiting shows no rate, because the seat would have taken more.
        """
        begins = backlog > 0 and not self.backlog
        self.backlog, elapsed = backlog, self._elapsed(now, resumed)
        if not claims and not begins:
            return
        keep = exp(min(0.0, self.since - now) / IDLE_DECAY) if begins else 1.0
        keep *= exp(-claims / (2 * _sample_size(running)))
        self.claimed, self.took = keep * self.claimed, keep * self.took
        if claims and backlog:
            self.claimed, self.took = self.claimed + claims, self.took + (0.0 if begins else elapsed)
        self.since = now

    def known(self, running: int) -> bool:
        """Whether enough were claimed: after fewer claims than sequences run, the true rate may be far lower."""
        return self.claimed >= _sample_size(running)

    def expected_wait(self, before: int, running: int, now: float, resumed: float) -> float:
        """The expected time (s) until `before` sequences are claimed, by Little's law.

        Without a known rate this is a lower bound, because at a greater rate all running sequences would have ended by
        now; or 0 if it is too early to say.
        """
        took = self.took + self._elapsed(now, resumed)
        if took < MIN_TIME and not self.known(running):
            return 0.0
        return before * took / max(self.claimed, _sample_size(running))

    def _elapsed(self, now: float, resumed: float) -> float:
        """Time (s) since the last claim, without the time in which the server was away or all engines slept."""
        return max(0.0, now - max(self.since, resumed))


def _sample_size(running: int) -> int:
    return max(MIN_SAMPLE, running)
