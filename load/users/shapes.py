"""Shapes of the load over time, as Locust's LoadTestShape: users in a closed loop, the rate in an open one."""

from __future__ import annotations

from typing import Any, ClassVar

from locust import LoadTestShape
from locust.runners import STATE_INIT

from load.users.options import is_open, profile
from load.users.profile import Kind


class LoadShape(LoadTestShape):
    """The load of `profile_of` with the options --users or --request-rate, --run-time and --stages.

    In an open loop all users are there from the beginning, as each process computes from the same profile when a
    request is due.
    """

    abstract = True
    use_common_options = True
    kind: ClassVar[Kind]
    runner: Any

    def get_run_time(self) -> float:
        """Seconds since the test began. Locust's own clock of a shape begins earlier, so the last requests of a stage
        would not be sent if the machine is busy."""
        return 0.0 if self.runner.state == STATE_INIT else float(self.runner.environment.load_test.now())

    def tick(self) -> tuple[int, float] | None:
        options = self.runner.environment.parsed_options
        level = profile(self.kind, options).level(self.get_run_time())
        if level is None:
            return None
        users = options.num_users if is_open(options) else max(1, round(level))
        return users, options.spawn_rate


class RampShape(LoadShape):
    kind = "ramp"


class StepShape(LoadShape):
    kind = "step"


class SpikeShape(LoadShape):
    kind = "spike"


class KneeShape(LoadShape):
    """Steps that end when too few requests of one meet the targets of --goodput."""

    kind = "knee"

    def tick(self) -> tuple[int, float] | None:
        test = self.runner.environment.load_test
        if test.tally is not None and not test.stopped and test.tally.knee(test.judged()) is not None:
            return None
        return super().tick()


SHAPES = (RampShape, StepShape, SpikeShape, KneeShape)
