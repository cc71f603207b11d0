"""Whose turn it is: tenants take turns by tokens served, and within a tenant sequences go by rank."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import floor, inf

from services.pool.limits import Limits, behind
from services.pool.reference.state import Sequence

PROMPT_TOKEN, OUTPUT_TOKEN = 1, 2
CHARGED_AT_ONCE = 8
COUNTERS_KEPT = 3600.0
SERVED, LINES = "served", "lines"


@dataclass(slots=True)
class Tenant:
    name: str
    queue: list[tuple[int, str, Sequence]] = field(default_factory=list)  # by rank
    served: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # counter -> tokens charged
    counter: str | None = None  # the one it goes by while anything waits
    last: float = 0.0  # its last turn
    passed: int = 0  # sequences that a claim under way passes over
    until: float = inf  # when its counters are forgotten

    @property
    def first(self) -> Sequence | None:
        return self.queue[self.passed][2] if self.passed < len(self.queue) else None


class Turns:
    """The queues of all tenants. A tenant with no turn for long is charged nothing for what it did not ask for, and
    saves nothing up: when something of it waits again, its counter is at least that of those it comes in with."""

    def __init__(self, limits: Limits) -> None:
        self.waiting = 0
        self._ageing = limits.ageing if limits.order == "priority" else 0.0
        self._tenants: dict[str, Tenant] = {}
        self._largest: defaultdict[str, int] = defaultdict(int)  # counter with which a tenant had a turn

    def wait(self, sequence: Sequence, now: float) -> None:
        tenant = self._tenant(sequence.group.tenant, now)
        insort(tenant.queue, (sequence.rank, sequence.id, sequence), key=lambda waits: waits[:2])
        self.waiting += 1
        self._place(tenant, now)

    def leave(self, sequence: Sequence, now: float) -> None:
        tenant = self._tenants[sequence.group.tenant]
        tenant.queue.remove((sequence.rank, sequence.id, sequence))
        self.waiting -= 1
        if not tenant.passed:
            self._place(tenant, now)

    def sequences(self, tenant: str | None) -> Iterator[Sequence]:
        """Those of a tenant that wait, or all."""
        for each in self._tenants.values():
            if tenant in (None, each.name):
                yield from (sequence for _, _, sequence in each.queue)

    def next(self) -> Sequence | None:
        """The sequence whose turn it is."""
        tenant = min(self._in_turn(), key=self._turn, default=None)
        return tenant.first if tenant else None

    def pass_over(self, sequence: Sequence) -> None:
        """It is for another seat: the claim under way looks at those behind it."""
        self._tenants[sequence.group.tenant].passed += 1

    def end_claim(self, now: float) -> None:
        for tenant in self._tenants.values():
            if tenant.passed:
                tenant.passed = 0
                self._place(tenant, now)

    def give(self, sequence: Sequence, now: float) -> None:
        """Its turn is taken; the prompt is charged once, however often the sequence is put back."""
        tenant, counter = self._tenants[sequence.group.tenant], counter_of(sequence)
        if not sequence.charged:
            self._largest[counter] = max(self._largest[counter], tenant.served[counter])
            tenant.served[counter] += PROMPT_TOKEN * len(sequence.new.prompt)
        sequence.charged, tenant.last = True, now
        self.leave(sequence, now)

    def charge(self, sequence: Sequence, before: int, ended: bool, now: float) -> None:
        """It had `before` output tokens; those that came are charged some at once, the rest when it has ended."""
        after = len(sequence.tokens)
        due = (after if ended else after - after % CHARGED_AT_ONCE) - (before - before % CHARGED_AT_ONCE)
        self._tenant(sequence.group.tenant, now).served[counter_of(sequence)] += OUTPUT_TOKEN * due

    def _tenant(self, name: str, now: float) -> Tenant:
        if name not in self._tenants or self._tenants[name].until <= now:
            self._tenants[name] = Tenant(name, until=now + COUNTERS_KEPT)
        return self._tenants[name]

    def _in_turn(self) -> Iterator[Tenant]:
        return (tenant for tenant in self._tenants.values() if tenant.first)

    def _place(self, tenant: Tenant, now: float) -> None:
        """Its queue has changed: which counter it goes by, from where, and for how long it is known."""
        if tenant.first is None:
            tenant.counter, tenant.until = None, now + COUNTERS_KEPT
            return
        tenant.until = inf
        counter = counter_of(tenant.first)
        if tenant.counter == counter:
            return
        tenant.counter = counter
        if not self._begun(tenant):  # who waits again because a seat died had never gone
            here = self._class(tenant)
            peers = [
                other.served[counter]
                for other in self._in_turn()
                if other is not tenant and self._class(other) == here and not self._begun(other)
            ]
            tenant.served[counter] = max(tenant.served[counter], min(peers, default=self._largest[counter]))

    def _turn(self, tenant: Tenant) -> tuple[float, bool, int, int, str]:
        first = tenant.first
        assert first is not None
        return self._class(tenant), not self._begun(tenant), tenant.served[counter_of(first)], first.rank, tenant.name

    def _begun(self, tenant: Tenant) -> bool:
        return tenant.first is not None and tenant.first.charged

    def _class(self, tenant: Tenant) -> float:
        """Of its first sequence. A class is worth `ageing` seconds of waiting without a turn, in steps."""
        assert tenant.first is not None
        group = tenant.first.group
        if behind(group.priority):
            return inf
        return group.priority + floor(max(group.arrival, tenant.last) / self._ageing) if self._ageing else 0


def counter_of(sequence: Sequence) -> str:
    return LINES if behind(sequence.group.priority) else SERVED
