"""How much load a test puts on the server at which time: its stages, and the arrivals of an open loop."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar, get_args

Kind = Literal["constant", "ramp", "step", "spike", "knee"]
KINDS: tuple[Kind, ...] = get_args(Kind)
T = TypeVar("T")
PEAK = 0.2  # the share of the time that a spike takes


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a test, over which the level goes from `begin` to `end` in a straight line.

    The level is a number of users in a closed loop, and of requests per second in an open one.
    """

    seconds: float
    begin: float
    end: float

    def level(self, at: float) -> float:
        """The level `at` seconds after the stage began."""
        if self.begin == self.end:
            return self.begin
        return self.begin + (self.end - self.begin) * at / self.seconds

    def arrivals(self, at: float) -> float:
        """The area below the level since the stage began: in an open loop the expected number of arrivals."""
        return at * (self.begin + self.level(at)) / 2

    def when(self, arrivals: float) -> float:
        """The inverse of `arrivals`; infinite if the level is 0 throughout."""
        if self.begin == self.end:
            return arrivals / self.begin if self.begin else math.inf
        slope = (self.end - self.begin) / self.seconds
        # the root of slope/2 at² + begin at = arrivals, in the form that does not cancel for small slopes
        doubled = self.begin + math.sqrt(max(0.0, self.begin**2 + 2 * slope * arrivals))
        return 2 * arrivals / doubled if doubled else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The stages of a test, one after the other. Times are seconds since the test began."""

    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def locate(self, at: float) -> tuple[int, float]:
        """The stage at this time, and how long it has run. After the end of the test, its last stage."""
        for index, stage in enumerate(self.stages[:-1]):
            if at < stage.seconds:
                return index, at
            at -= stage.seconds
        return len(self.stages) - 1, at

    def level(self, at: float) -> float | None:
        """The level at this time; None after the end."""
        index, into = self.locate(at)
        return self.stages[index].level(into) if into < self.stages[index].seconds else None

    def when(self, arrivals: float) -> float | None:
        """The time at which the expected number of arrivals is reached; None if the test ends before."""
        began = 0.0
        for stage in self.stages:
            # the area of a stage that does not end is infinite
            if math.isinf(stage.seconds) or arrivals < stage.arrivals(stage.seconds):
                return began + stage.when(arrivals)
            arrivals -= stage.arrivals(stage.seconds)
            began += stage.seconds
        return None


def profile_of(kind: Kind, peak: float, seconds: float, stages: int) -> Profile:
    """A test of `seconds` whose highest level is `peak`.

    constant: the peak throughout. ramp: from 0 to the peak in a straight line. step and knee: `stages` equal steps up
    to the peak. spike: 1/`stages` of the peak, with the peak itself in the middle fifth of the time.
    """
    steps = [peak * (i + 1) / stages for i in range(stages)]
    match kind:
        case "constant":
            return Profile((Stage(seconds, peak, peak),))
        case "ramp":
            begins = [0.0, *steps[:-1]]
            return Profile(tuple(Stage(seconds / stages, a, b) for a, b in zip(begins, steps, strict=True)))
        case "step" | "knee":
            return Profile(tuple(Stage(seconds / stages, level, level) for level in steps))
        case "spike":
            calm, base = seconds * (1 - PEAK) / 2, steps[0]
            return Profile((Stage(calm, base, base), Stage(seconds * PEAK, peak, peak), Stage(calm, base, base)))


def arrivals(profile: Profile, burstiness: float, seed: int) -> Iterator[float]:
    """The intended times of the requests of an open loop, in seconds since the test began.

    The gaps between them are drawn as `vllm bench serve` draws them: by a gamma distribution of shape `burstiness`
    whose mean is one request, so 1 is a Poisson process, less comes in bursts, and more is more even. Where the rate of
    the profile changes, the same gaps are stretched.
    """
    gap, count = random.Random(seed).gammavariate, 0.0
    while True:
        count += gap(burstiness, 1 / burstiness)
        at = profile.when(count)
        if at is None or math.isinf(at):
            return
        yield at


def share(every: Iterator[T], worker: int, workers: int) -> Iterator[tuple[int, T]]:
    """Each `workers`-th arrival from number `worker` on, with its number: what one of several processes sends, so that
    all of them together send the arrivals of one process."""
    return islice(enumerate(every), worker, None, workers)
