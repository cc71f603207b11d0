"""Order: which requests are preempted for which. Lists of requests are sorted by rank, the smallest rank first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.scheduling.budget import Budget
from services.scheduling.cost_model import CostModel
from services.scheduling.request_entry import RequestEntry


class Order(Protocol):
    has_classes: bool  # later classes give way to earlier ones

    def preemptible(self, entry: RequestEntry, running: list[RequestEntry]) -> list[RequestEntry]:
        """Return the requests of `running` that give way to `entry`, which waits, in the order in which they do."""
        ...


class Fcfs:
    """In the paper, an earlier request never waits for a later one. Here it can arrive later, if its previous owner
    died. Then the latest request gives way.
    """

    has_classes = False

    def preemptible(self, entry: RequestEntry, running: list[RequestEntry]) -> list[RequestEntry]:
        return [other for other in reversed(running) if other.rank > entry.rank]


class Priority:
    """The order by class, slack to the TTFT target, and ageing. All three are part of the rank from the pool, which is
    a virtual due time: a request that has waited long enough goes before all that arrive later, and none starves.

    Running requests continue, unless the first token of a request of an earlier class would be late. Then requests of
    later classes and larger rank give way.
    """

    has_classes = True

    def __init__(self, cost: CostModel, budget: Budget, now: Callable[[], float]) -> None:
        self._cost = cost
        self._budget = budget
        self._now = now

    def preemptible(self, entry: RequestEntry, running: list[RequestEntry]) -> list[RequestEntry]:
        if not self._at_risk(entry, len(running)):
            return []
        return [o for o in reversed(running) if o.priority > entry.priority and o.rank > entry.rank]

    def _at_risk(self, entry: RequestEntry, num_running: int) -> bool:
        """Return whether the first token is late unless the request starts now.

        The estimate covers its own iterations, beginning with the one in which it starts (`Budget.prompt_seconds`). Two
        iterations like the last one are added: a request that starts one iteration later is late by one, and the way of
        the token to the client is not estimated.
        """
        if entry.ttft_deadline is None or entry.output:
            return False
        seconds = self._budget.prompt_seconds(entry.num_tokens, num_running)
        return self._now() + 2 * self._cost.last_seconds + seconds >= entry.ttft_deadline


def is_guest(entry: RequestEntry, head: RequestEntry, running: list[RequestEntry]) -> bool:
    """Return whether the running `entry` keeps its place although `head` waits, because the tenant of `head` has as
    many running requests as its own, so that it would enter again as a guest, and `head` is not of an earlier class.
    """
    if entry.tenant == head.tenant or head.priority < entry.priority:
        return False
    tenants = [other.tenant for other in running]
    return tenants.count(entry.tenant) <= tenants.count(head.tenant)
