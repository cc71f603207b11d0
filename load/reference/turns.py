"""The queues of tenants: tenants take turns by tokens served, and the sequences of a tenant go by rank.

The rules are those of the Virtual Token Counter (VTC) of "Fairness in Serving Large Language Models" (OSDI 2024). The
counterpart of the Lua fragment `turns`.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import floor, inf

from load.reference.state import Sequence
from services.pool.limits import Limits
from services.requests import is_line

PROMPT_TOKEN, OUTPUT_TOKEN = 1, 2
CHARGED_AT_ONCE = 8
COUNTERS_KEPT = 3600.0
SERVED, LINES = "served", "lines"  # the two counters: for requests, for lines of batches


@dataclass(slots=True)
class Tenant:
    """A tenant's queue and counters, as the keys `waiting:<tenant>` and `turn:<tenant>`."""

    name: str
    queue: list[tuple[int, str, Sequence]] = field(default_factory=list)  # by rank
    served: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # counter -> tokens charged
    counter: str | None = None  # which counter orders it; None while nothing waits
    last: float = 0.0  # when it had its last turn, other than one of a line of a batch
    skipped: int = 0  # sequences that the claim in progress skips
    expires: float = inf  # when its counters are forgotten

    @property
    def first(self) -> Sequence | None:
        return self.queue[self.skipped][2] if self.skipped < len(self.queue) else None


class TenantQueues:
    """The queues of all tenants, and whose turn it is.

    A tenant saves up no turns while it asks for nothing: when it joins again, its counter is at least that of the
    tenants whose turns it joins.
    """

    def __init__(self, limits: Limits) -> None:
        self.waiting = 0
        self._ageing = limits.ageing if limits.order == "priority" else 0.0
        self._tenants: dict[str, Tenant] = {}
        self._largest: defaultdict[str, int] = defaultdict(int)  # the largest count with which a tenant had a turn

    def enqueue(self, sequence: Sequence, now: float) -> None:
        tenant = self._tenant(sequence.group.tenant, now)
        insort(tenant.queue, (sequence.rank, sequence.id, sequence), key=lambda waits: waits[:2])
        self.waiting += 1
        self._update_turn(tenant, now)

    def dequeue(self, sequence: Sequence, now: float) -> None:
        tenant = self._tenants[sequence.group.tenant]
        tenant.queue.remove((sequence.rank, sequence.id, sequence))
        self.waiting -= 1
        if not tenant.skipped:
            self._update_turn(tenant, now)

    def sequences(self, tenant: str | None) -> Iterator[Sequence]:
        """Waiting sequences of a tenant, or of all tenants."""
        for each in self._tenants.values():
            if tenant in (None, each.name):
                yield from (sequence for _, _, sequence in each.queue)

    def next(self) -> Sequence | None:
        """The sequence at the front: the first of the tenant whose turn it is."""
        tenant = min(self._waiting_tenants(), key=self._turn, default=None)
        return tenant.first if tenant else None

    def skip(self, sequence: Sequence) -> None:
        """Leave the sequence to another seat: the claim in progress goes on with those behind it."""
        self._tenants[sequence.group.tenant].skipped += 1

    def put_behind(self, sequence: Sequence, later: int, now: float) -> None:
        """Add `later` microseconds to the rank of a waiting sequence."""
        tenant = self._tenants[sequence.group.tenant]
        tenant.queue.remove((sequence.rank, sequence.id, sequence))
        sequence.rank, sequence.late = sequence.rank + later, True
        insort(tenant.queue, (sequence.rank, sequence.id, sequence), key=lambda waits: waits[:2])
        self._update_turn(tenant, now)

    def end_claim(self, now: float) -> None:
        """Put the sequences that the claim has skipped back to the front."""
        for tenant in self._tenants.values():
            if tenant.skipped:
                tenant.skipped = 0
                self._update_turn(tenant, now)

    def take(self, sequence: Sequence, now: float) -> None:
        """Take a sequence at its tenant's turn. The prompt is charged once, however often the sequence is requeued."""
        tenant, counter = self._tenants[sequence.group.tenant], counter_of(sequence)
        if not sequence.charged:
            self._largest[counter] = max(self._largest[counter], tenant.served[counter])
            tenant.served[counter] += PROMPT_TOKEN * len(sequence.new.prompt)
        sequence.charged = True
        if counter == SERVED:
            tenant.last = now
        self.dequeue(sequence, now)

    def charge(self, sequence: Sequence, before: int, ended: bool, now: float) -> None:
        """Charge output tokens from number `before` on, in steps of `CHARGED_AT_ONCE`; the rest when it has ended."""
        after = len(sequence.tokens)
        due = (after if ended else after - after % CHARGED_AT_ONCE) - (before - before % CHARGED_AT_ONCE)
        self._tenant(sequence.group.tenant, now).served[counter_of(sequence)] += OUTPUT_TOKEN * due

    def _tenant(self, name: str, now: float) -> Tenant:
        if name not in self._tenants or self._tenants[name].expires <= now:
            self._tenants[name] = Tenant(name, expires=now + COUNTERS_KEPT)
        return self._tenants[name]

    def _waiting_tenants(self) -> Iterator[Tenant]:
        return (tenant for tenant in self._tenants.values() if tenant.first)

    def _update_turn(self, tenant: Tenant, now: float) -> None:
        """Update which counter orders the tenant, its value, and when its counters expire."""
        if tenant.first is None:
            tenant.counter, tenant.expires = None, now + COUNTERS_KEPT
            return
        tenant.expires = inf
        counter = counter_of(tenant.first)
        if tenant.counter == counter:
            return
        tenant.counter = counter
        if not self._requeued(tenant):  # a tenant whose first sequence was requeued does not join anew
            here = self._class(tenant)
            peers = [
                other.served[counter]
                for other in self._waiting_tenants()
                if other is not tenant and self._class(other) == here and not self._requeued(other)
            ]
            tenant.served[counter] = max(tenant.served[counter], min(peers, default=self._largest[counter]))

    def _turn(self, tenant: Tenant) -> tuple[float, bool, int, int, str]:
        first = tenant.first
        assert first is not None
        return (
            self._class(tenant),
            not self._requeued(tenant),
            tenant.served[counter_of(first)],
            round(1e6 * tenant.last) or first.rank,
            tenant.name,
        )

    def _requeued(self, tenant: Tenant) -> bool:
        """Whether its first sequence ran before."""
        return tenant.first is not None and tenant.first.charged

    def _class(self, tenant: Tenant) -> float:
        """The class of its first sequence, lower by one for each `ageing` seconds that it waits without a turn."""
        assert tenant.first is not None
        group = tenant.first.group
        if is_line(group.priority):
            return inf
        return group.priority + floor(max(group.arrival, tenant.last) / self._ageing) if self._ageing else 0


def counter_of(sequence: Sequence) -> str:
    return LINES if is_line(sequence.group.priority) else SERVED
