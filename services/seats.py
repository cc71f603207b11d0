"""Seats, the places of engines in a pool: which ones a cluster has, who gets one, how many engines are wanted.

A seat is named `<cluster>/<index>`; for a model with a tag, `<cluster>.m<tag>/<index>`. A seat whose index is not
below the number of engines that the cluster is to have is surplus: it gets no requests, and whoever owns it removes its
engine, after which the pool forgets it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeatGrant:
    """The result of `acquire`: the caller's new epoch, or the current owner and its epoch while its lease lives."""

    granted: bool
    epoch: str
    owner: str
    surplus: bool = False


@dataclass(frozen=True, slots=True)
class ClusterSeats:
    """The number of engines that a cluster is to have, and the indices of the seats that the pool knows of it.

    A seat is known from its first owner until it is forgotten: when its engine was removed, or an hour after its last
    owner.
    """

    wanted: int
    indices: list[int]

    @property
    def surplus(self) -> list[int]:
        """The seats whose engines have to be removed."""
        return [index for index in self.indices if index >= self.wanted]


def cluster_of_model(cluster: str, tag: str) -> str:
    """Return the name under which a cluster has the seats of the model with this tag."""
    return f"{cluster}.m{tag}" if tag else cluster


def cluster_of(seat: str) -> str:
    """Return the cluster of a seat."""
    return seat.rpartition("/")[0]


def engine_of(seat: str) -> str:
    """Return the number of a seat's engine."""
    return seat.rpartition("/")[2]


def seats_of_shard(place: int, shards: int, engines: int) -> int:
    """Return how many of a cluster's seats are in the pool at this place among its pools: seats are dealt in turn."""
    return len(range(place, engines, shards))
