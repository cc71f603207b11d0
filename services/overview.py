"""Overview: the state of the pool and its seats, for metrics and status."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.messages import EngineFigures
from services.seats import cluster_of


@dataclass(frozen=True, slots=True)
class Seat:
    """The state of a seat, which is an engine's place in the pool."""

    name: str
    alive: bool  # its lease has not expired
    figures: EngineFigures | None
    running: int
    gauges: dict[str, float]
    summary: str
    owner: str = ""  # empty while the seat has none
    epoch: str = ""  # of the owner


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the pool, read by one script: for `/ready`, `/metrics`, `orca status` and the check of requests."""

    waiting: int
    running: int
    ended: int
    bytes: int
    figures: EngineFigures | None  # of the largest engine; the last known ones while no seat is alive
    seats: list[Seat]
    counters: dict[str, float]
    gateways: int
    full: bool = False  # the server's memory is full, and it refuses new requests
    gateway_gauges: dict[str, dict[str, float]] = field(default_factory=dict)  # of the registered gateways, by id
    waiting_tokens: int = 0  # of the prompts of sequences that wait
    wanted: dict[str, int] = field(default_factory=dict)  # the number of engines that each cluster is to have

    @property
    def engines_wanted(self) -> int:
        """The engines that the clusters with a living scheduler are to have."""
        return sum(self.wanted.get(cluster, 0) for cluster in {cluster_of(s.name) for s in self.seats if s.alive})

    @property
    def ready(self) -> bool:
        """Whether a scheduler owns a seat and reports that its engine is attached and can run iterations."""
        return any(seat.alive and seat.gauges.get("ready") == 1 for seat in self.seats)
