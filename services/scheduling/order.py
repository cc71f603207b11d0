"""Order: who gives its place in the batch to whom. Lists of requests are by rank, the first served first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.scheduling.budget import Budget
from services.scheduling.cost_model import CostModel
from services.scheduling.request_entry import Entry


class Order(Protocol):
    classes: bool  # whether later classes yield to earlier ones

    def yielding(self, entry: Entry, running: list[Entry]) -> list[Entry]:
        """Who of `running` gives way to `entry`, which waits; the first to do so first."""
        ...


class Fcfs:
    """In the paper an earlier request never waits for a later one. Here it can come late, where another owner of it
    died; then the latest gives way."""

    classes = False

    def yielding(self, entry: Entry, running: list[Entry]) -> list[Entry]:
        return [other for other in reversed(running) if other.rank > entry.rank]


class Priority:
    """By class, then slack to the TTFT target, with ageing: all three are in the rank the pool gave (a virtual due
    time), so whoever waits long enough is before all that come later, and nobody starves.

    Requests that run go on, unless the first token of one of an earlier class would be late: then those of later
    classes, and of later rank, give way.
    """

    classes = True

    def __init__(self, cost: CostModel, budget: Budget, now: Callable[[], float]) -> None:
        self._cost = cost
        self._budget = budget
        self._now = now

    def yielding(self, entry: Entry, running: list[Entry]) -> list[Entry]:
        if not self._at_risk(entry, len(running)):
            return []
        return [o for o in reversed(running) if o.priority > entry.priority and o.rank > entry.rank]

    def _at_risk(self, entry: Entry, running: int) -> bool:
        """Whether its first token comes late unless it starts now. Estimated are its own iterations, from the one it
        starts in (`Budget.seconds`); who begins an iteration later is late by one, and the way to the client is not
        estimated: two iterations like the last one to spare."""
        if entry.due is None or entry.output:
            return False
        return self._now() + 2 * self._cost.last + self._budget.seconds(entry.num_tokens, running) >= entry.due


def is_guest(entry: Entry, head: Entry, running: list[Entry]) -> bool:
    """Whether `entry`, which runs, does not give way to `head`, which waits and is of no earlier class: nothing else of
    its tenant runs, while others of the tenant of `head` do."""
    if entry.tenant == head.tenant or head.priority < entry.priority:
        return False
    tenants = [other.tenant for other in running]
    return tenants.count(entry.tenant) == 1 and head.tenant in tenants
