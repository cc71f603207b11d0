"""Overview: the pool from outside, with the seats in it."""

from __future__ import annotations

from dataclasses import dataclass

from services.messages import EngineFigures


@dataclass(frozen=True, slots=True)
class Seat:
    """An engine's place in the pool, as an observer sees it."""

    name: str
    alive: bool  # its lease has not run out
    figures: EngineFigures | None
    running: int
    gauges: dict[str, float]
    summary: str
    owner: str = ""  # who holds it; empty while nobody does


@dataclass(frozen=True, slots=True)
class Overview:
    """The pool as it is, read in one script: for `/ready`, `/metrics`, `orca status`, refusal at the door."""

    waiting: int
    running: int
    ended: int
    bytes: int
    figures: EngineFigures | None  # the largest engine's, the last known ones while no seat is alive
    seats: list[Seat]
    counters: dict[str, float]
    gateways: int
    lines: int = 0  # of those waiting, lines of batches, which let all others go first

    @property
    def ready(self) -> bool:
        """Whether a scheduler holds a seat and says that its engine is attached and finishes iterations."""
        return any(seat.alive and seat.gauges.get("ready") == 1 for seat in self.seats)
