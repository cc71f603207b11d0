"""Measured: a phase of the engine beside its floor."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from load.bench.engine.floor import Floor, floor
from load.bench.engine.follower import Ran
from load.bench.engine.machine_rates import MachineRates
from load.bench.engine.model_shape import ModelShape

USUAL = "over the floor of median rates"


@dataclass(frozen=True, slots=True)
class Measured:
    """`seconds` of `iterations` in all: what they took, or would take if each took the median of them."""

    name: str
    iterations: int
    floor: Floor
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)  # what else this phase says, by name

    @property
    def ratio(self) -> float:
        return self.seconds / self.floor.seconds

    def json(self) -> dict[str, Any]:
        """As plain lists and dicts; also with its floor in seconds and its ratio."""
        return {**asdict(self), "floor_seconds": self.floor.seconds, "ratio": self.ratio}


def alike(name: str, ran: Sequence[Ran], shape: ModelShape, rates: MachineRates) -> Measured:
    """Of iterations that are nearly the same."""
    spans = [one.spans for one in ran]
    lowest = floor(shape, rates, spans)
    times = [one.seconds for one in ran]
    tokens = sum(span.tokens for one in ran for span in one.spans)
    seconds = statistics.median(times) * len(ran)
    return Measured(
        name,
        len(ran),
        lowest,
        seconds,
        {
            "tokens a second": tokens / seconds,
            "best over floor": min(times) * len(ran) / lowest.seconds,
            "share of bandwidth": lowest.moving / seconds,
            USUAL: seconds / floor(shape, rates.usual(), spans).seconds,
        },
    )
