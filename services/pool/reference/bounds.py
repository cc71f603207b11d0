"""The bounds of a pool, on plain objects: what is there is counted anew whenever somebody asks."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields
from math import ceil

from services.messages import Submission
from services.pool.limits import Bounds, Limits, behind
from services.pool.reference.groups import Groups
from services.pool.reference.service_rate import ServiceRate
from services.pool.reference.state import Clock, Group, Sequence
from services.refusals import Refusal


class Bounded(Groups):
    def __init__(self, clock: Clock, limits: Limits | None = None) -> None:
        super().__init__(clock, limits)
        self._rates: defaultdict[str, ServiceRate] = defaultdict(ServiceRate)
        self._claims: Counter[str] = Counter()  # by the call before, of each tenant

    def _begin(self) -> None:
        if self.limits.max_queue_wait:
            self._note_rates()
        super()._begin()

    def _note_rates(self) -> None:
        """What the call before changed."""
        tenants = {group.tenant for group in self._groups.values()}
        for tenant in tenants:
            backlog = sum(map(_asked, self._turns.sequences(tenant)))
            running = self._running(tenant)
            self._rates[tenant].note(self._claims[tenant], backlog, running, self._stamp, self._resumed)
        for tenant in self._rates.keys() - tenants:
            del self._rates[tenant]
        self._claims.clear()

    def _running(self, tenant: str) -> int:
        """Sequences of this tenant that run, but for lines of batches."""
        running = (sequence for seat in self._seats.values() for sequence in seat.running.values())
        return sum(sequence.group.tenant == tenant and _asked(sequence) for sequence in running)

    def _held(self, tenant: str | None = None) -> Bounds:
        """What a tenant has in the pool, or all have; of `bytes` only those of groups that have not ended."""
        return Bounds(*(self._count_of(bound.name, tenant) for bound in fields(Bounds)))

    def _count_of(self, bound: str, tenant: str | None) -> int:
        if bound == "waiting" and tenant is None:
            return self._turns.waiting
        if bound in ("waiting", "waiting_tokens"):
            waiting = list(self._turns.sequences(tenant))
            return len(waiting) if bound == "waiting" else sum(len(s.new.prompt) for s in waiting)
        groups = [group for group in self._groups.values() if tenant in (None, group.tenant)]
        if bound == "streams":
            return sum(group.open > 0 and group.stream for group in groups)
        if bound == "bytes":
            return sum(group.bytes for group in groups if group.open)
        return sum(group.open == 0 for group in groups)

    def _refusal(self, submission: Submission, group: Group) -> Refusal | None:
        """Why the group does not enter; None if it may, place having been made for it."""
        if group.stream and not submission.waited and (refusal := self._waits_too_long(submission, group)):
            return refusal
        all, own = self.limits.bounds, self.limits.bounds_of(group.tenant)
        needs = {
            "waiting": len(submission.sequences),
            "waiting_tokens": sum(len(s.prompt) for s in submission.sequences),
            "streams": int(group.stream),
        }
        for bound, need in needs.items():
            for limits, tenant in ((own, group.tenant), (all, None)):
                limit = getattr(limits, bound)
                if limit and need and (has := self._count_of(bound, tenant)) + need > limit:
                    return Refusal(bound, tenant is not None, has, need, limit)
        if not self._make_place(group.tenant, group.bytes):
            held = self._count_of("bytes", group.tenant)
            if own.bytes and held + group.bytes > own.bytes:
                return Refusal("bytes", True, held, group.bytes, own.bytes)
            return Refusal("bytes", False, self._count_of("bytes", None), group.bytes, all.bytes)
        self._keep_few(group.tenant)
        return None

    def _waits_too_long(self, submission: Submission, group: Group) -> Refusal | None:
        """Judged by the wait that is to be expected, and by how long the tenant's first sequence has waited, unless the
        group goes before it."""
        most, now = self.limits.max_queue_wait, self._now
        if not most:
            return None
        waiting = list(filter(_asked, self._turns.sequences(group.tenant)))
        if self.limits.order == "priority":
            rank = self._first_rank(submission, group)
            waiting = [sequence for sequence in waiting if sequence.rank <= rank]
        rate, running = self._rates[group.tenant], self._running(group.tenant)
        wait = rate.expected_wait(len(waiting), running, now, self._resumed)
        if waiting and not waiting[0].charged and not rate.known(running):
            wait = max(wait, now - waiting[0].group.arrival)
        return Refusal("queue_wait", True, ceil(wait), 0, ceil(most)) if wait > most else None

    def _bytes(self, tenant: str | None = None) -> int:
        return sum(group.bytes for group in self._groups.values() if tenant in (None, group.tenant))

    def _stored(self, tenant: str | None = None) -> list[Group]:
        """Ended groups, the oldest first."""
        return [group for group in self._ended if tenant in (None, group.tenant)]

    def _make_place(self, tenant: str, more: int) -> bool:
        """Drop ended groups for so many bytes; nothing if that would not be enough."""
        most, own_most = self.limits.max_bytes, self.limits.bounds_of(tenant).bytes
        if self._bytes() + more <= most and (not own_most or self._bytes(tenant) + more <= own_most):
            return True
        own_stored = sum(group.bytes for group in self._stored(tenant))
        if own_most and self._bytes(tenant) - own_stored + more > own_most:
            return False
        holders = {group.tenant for group in self._groups.values()} | {tenant}
        if self._bytes() + more > most:
            share, freeable = most / len(holders), float(own_stored)
            for other in holders - {tenant}:
                stored = sum(group.bytes for group in self._stored(other))
                freeable += max(0.0, min(stored, self._bytes(other) - share))
            if self._bytes() + more - freeable > most:
                return False
        while own_most and self._bytes(tenant) + more > own_most:
            self._drop(self._stored(tenant)[0])
        while self._bytes() + more > most:
            has = {other: self._bytes(other) for other in holders}
            whose = self._victim(has, tenant, more, most / len(holders))
            if whose is None:
                return False
            self._drop(self._stored(whose)[0])
        return True

    def _keep_few(self, tenant: str) -> None:
        """Of ended groups, with place for one that has yet to end."""
        most, own_most = self.limits.max_stored, self.limits.bounds_of(tenant).stored
        if not most and not own_most:
            return
        while own_most and len(self._stored(tenant)) >= own_most:
            self._drop(self._stored(tenant)[0])
        holders = {group.tenant for group in self._groups.values()} | {tenant}
        while most and len(self._stored()) >= most:
            has = {other: len(self._stored(other)) for other in holders}
            whose = self._victim(has, tenant, 1, most / len(holders))
            if whose is None:
                return
            self._drop(self._stored(whose)[0])

    def _victim(self, has: dict[str, int], tenant: str, more: int, share: float) -> str | None:
        """Whose oldest ended group goes: the tenant's own if it is above its share, else that of who is furthest above
        it, else the tenant's own."""
        own = tenant if self._stored(tenant) else None
        if own and has[tenant] + more > share:
            return own
        above = [other for other in has if other != tenant and has[other] > share and self._stored(other)]
        return min(above, key=lambda other: (-has[other], other.encode()), default=own)


def _asked(sequence: Sequence) -> bool:
    """It is no line of a batch."""
    return not behind(sequence.group.priority)
