"""Overview: the state of the pool, its seats and their engines, for metrics and status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from services.messages import EngineFigures
from services.seats import cluster_of


class SleepLevel(IntEnum):
    """What an engine without requests has given back. Each state includes those before it."""

    AWAKE = 0
    ASLEEP = 1  # the memory of the KV cache, with its prefixes
    COLD = 2  # the weights; one process of each rank stays, with everything imported
    OFF = 3  # all processes, and their place in the cluster


@dataclass(frozen=True, slots=True)
class SeatOverview:
    """The state of a seat, an engine's place in the pool, as metrics and status show it."""

    name: str
    alive: bool  # its lease has not expired
    figures: EngineFigures | None
    running: int
    gauges: dict[str, float]
    summary: str
    owner: str = ""  # empty while the seat has none
    epoch: str = ""  # of the owner

    @property
    def ready(self) -> bool:
        """Whether its engine is attached and can run iterations, or wakes up when requests wait."""
        return self.alive and self.gauges.get("ready") == 1

    @property
    def failure(self) -> str:
        """Why its engine could not load the model last; empty while it is ready, and while that is not known."""
        return self.summary if self.alive and self.gauges.get("ready") == 0 else ""

    @property
    def level(self) -> SleepLevel:
        """The state of its engine."""
        return SleepLevel(int(self.gauges.get("sleep", 0)))


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the pool, read by one script: for `/ready`, `/metrics`, `orca status` and the check of requests."""

    waiting: int
    running: int
    ended: int
    bytes: int
    figures: EngineFigures | None  # of the largest engine; the last known ones while no seat is alive
    seats: list[SeatOverview]
    counters: dict[str, float]
    gateways: int
    full: bool = False  # the server's memory is full, and it refuses new requests
    gateway_gauges: dict[str, dict[str, float]] = field(default_factory=dict)  # of the registered gateways, by id
    waiting_tokens: int = 0  # of the prompts of sequences that wait
    created: int = field(default=0, compare=False)  # Unix seconds of the first heartbeat; 0 before it
    wanted: dict[str, int] = field(default_factory=dict)  # the number of engines that each cluster is to have

    @property
    def engines_wanted(self) -> int:
        """The engines that the clusters with a living scheduler are to have."""
        return sum(self.wanted.get(cluster, 0) for cluster in {cluster_of(s.name) for s in self.seats if s.alive})

    @property
    def ready(self) -> bool:
        """Whether a scheduler owns a seat and reports that its engine is ready."""
        return self.ready_engines > 0

    @property
    def ready_engines(self) -> int:
        """The number of seats whose engines are ready."""
        return sum(seat.ready for seat in self.seats)

    @property
    def level(self) -> SleepLevel | None:
        """The state of the engine that is ready and has given back least; None if none is ready."""
        return min((seat.level for seat in self.seats if seat.ready), default=None)

    @property
    def failure(self) -> str:
        """Why an engine could not load the model, if none is ready."""
        return "" if self.ready else next((seat.failure for seat in self.seats if seat.failure), "")

    @property
    def awake(self) -> bool:
        """Whether an engine is ready and has its weights."""
        return self.level is not None and self.level < SleepLevel.COLD


def combined(overviews: Sequence[Overview]) -> Overview:
    """Return the state of several pools together. `figures` are those of the pool whose largest engine is smallest,
    which every pool can satisfy; `full`: all are; `wanted`: the largest numbers, if a pool has missed one."""
    if len(overviews) == 1:
        return overviews[0]
    figures = [overview.figures for overview in overviews if overview.figures]
    counters: dict[str, float] = {}
    for overview in overviews:
        for series, value in overview.counters.items():
            counters[series] = counters.get(series, 0.0) + value
    wanted: dict[str, int] = {}
    for overview in overviews:
        wanted |= {cluster: max(number, wanted.get(cluster, 0)) for cluster, number in overview.wanted.items()}
    return Overview(
        waiting=sum(overview.waiting for overview in overviews),
        running=sum(overview.running for overview in overviews),
        ended=sum(overview.ended for overview in overviews),
        bytes=sum(overview.bytes for overview in overviews),
        figures=min(figures, key=lambda each: each.longest, default=None),
        seats=[seat for overview in overviews for seat in overview.seats],
        counters=counters,
        gateways=max(overview.gateways for overview in overviews),
        created=min((one.created for one in overviews if one.created), default=0),
        full=all(overview.full for overview in overviews),
        waiting_tokens=sum(overview.waiting_tokens for overview in overviews),
        wanted=wanted,
        gateway_gauges={id: gauges for overview in overviews for id, gauges in overview.gateway_gauges.items()},
    )


def silent(overview: Overview) -> Overview:
    """Return the last known state of a pool whose server does not answer."""
    return replace(overview, seats=[replace(seat, alive=False) for seat in overview.seats])
