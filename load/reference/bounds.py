"""BoundRules: which submissions are refused, and which ended groups are dropped to make room.

The counterpart of the Lua fragments `bounds`, `counts` and `service_rate`. Nothing is counted in advance: each check
looks at all groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import ceil, exp, inf

from load.reference.groups import GroupRules
from load.reference.state import Clock, Group, Sequence
from services.messages import Submission
from services.pool.limits import Bounds, Limits
from services.requests import Refusal, is_line

MIN_SAMPLE = 16  # sequences; fewer do not show a rate
MIN_TIME = 2.0  # seconds after which few claims show that the rate is low
IDLE_DECAY = 60.0  # seconds; time constant with which a rate is forgotten while nothing waits
LEAST_WAIT = 1.0  # seconds; nobody leaves for a shorter wait
WAIT_SHARE = 0.18  # of the time that a client stayed; if less of it was waiting, the wait is not why it left
ADAPT = 0.25  # how far a client that leaves moves the bound
REGAIN = 1 / 300  # of the wait for a whole answer


@dataclass(slots=True)
class ServiceRate:
    """How fast sequences of a tenant are claimed while others of it wait: `claimed` sequences in `took` seconds.

    Both sums decay with each claim. Lines of batches do not count. `since`: the time of the last claim, or at which
    sequences began to wait.
    """

    backlog: int = 0  # sequences that wait
    since: float = 0.0
    claimed: float = 0.0
    took: float = 0.0
    patience: float = inf  # seconds that requests may wait, as clients are seen to wait

    def record(self, claims: int, backlog: int, running: int, now: float, resumed: float) -> None:
        """Add the `claims` of a call that left `backlog` sequences waiting and `running` ones running.

        A claim that leaves nothing waiting shows no rate, because the seat would have taken more.
        """
        begins = backlog > 0 and not self.backlog
        self.backlog, elapsed = backlog, self._elapsed(now, resumed)
        if not claims and not begins:
            return
        keep = exp(min(0.0, self.since - now) / IDLE_DECAY) if begins else 1.0
        keep *= exp(-claims / (2 * _sample_size(running)))
        self.claimed, self.took = keep * self.claimed, keep * self.took
        if claims and backlog:
            self.claimed, self.took = self.claimed + claims, self.took + (0.0 if begins else elapsed)
        self.since = now

    def known(self, running: int) -> bool:
        """Whether enough were claimed: after fewer claims than sequences run, the true rate may be far lower."""
        return self.claimed >= _sample_size(running)

    def expected_wait(self, before: int, running: int, now: float, resumed: float) -> float:
        """The expected time (s) until `before` sequences are claimed, by Little's law.

        Without a known rate this is a lower bound, because at a greater rate all running sequences would have ended by
        now; or 0 if it is too early to say.
        """
        took = self.took + self._elapsed(now, resumed)
        if took < MIN_TIME and not self.known(running):
            return 0.0
        return before * took / max(self.claimed, _sample_size(running))

    def _elapsed(self, now: float, resumed: float) -> float:
        """Time (s) since the last claim, without the time in which the server was away or all engines slept."""
        return max(0.0, now - max(self.since, resumed))


def _sample_size(running: int) -> int:
    return max(MIN_SAMPLE, running)


class BoundRules(GroupRules):
    """Adds the bounds of submissions and the rates of claims. `GroupRules` describes the chain of classes."""

    def __init__(self, clock: Clock, limits: Limits | None = None) -> None:
        super().__init__(clock, limits)
        self._rates: defaultdict[str, ServiceRate] = defaultdict(ServiceRate)
        self._claims: Counter[str] = Counter()  # tenant -> sequences that the previous call claimed

    def _begin(self) -> None:
        if self.limits.max_queue_wait:
            self._record_rates()
        super()._begin()

    def _record_rates(self) -> None:
        """Add what the previous call changed to the rates."""
        tenants = {group.tenant for group in self._groups.values()}
        for tenant in tenants:
            backlog = sum(map(_not_a_line, self._queues.sequences(tenant)))
            running = self._running(tenant)
            self._rates[tenant].record(self._claims[tenant], backlog, running, self._stamp, self._resumed)
        for tenant in self._rates.keys() - tenants:
            del self._rates[tenant]
        self._claims.clear()

    def _running(self, tenant: str) -> int:
        """The number of running sequences of this tenant, without lines of batches."""
        running = (sequence for seat in self._seats.values() for sequence in seat.running.values())
        return sum(sequence.group.tenant == tenant and _not_a_line(sequence) for sequence in running)

    def _held(self, tenant: str | None = None) -> Bounds:
        """What a tenant, or all of them, has in the pool. `bytes` are those of groups that have not ended."""
        return Bounds(*(self._count_of(bound, tenant) for bound in Bounds._fields))

    def _count_of(self, bound: str, tenant: str | None) -> int:
        if bound == "waiting" and tenant is None:
            return self._queues.waiting
        if bound in ("waiting", "waiting_tokens"):
            waiting = list(self._queues.sequences(tenant))
            return len(waiting) if bound == "waiting" else sum(len(s.new.prompt) for s in waiting)
        groups = [group for group in self._groups.values() if tenant in (None, group.tenant)]
        if bound == "streams":
            return sum(group.open > 0 and group.stream for group in groups)
        if bound == "bytes":
            return sum(group.bytes for group in groups if group.open)
        return sum(group.open == 0 for group in groups)

    def _refusal(self, submission: Submission, group: Group) -> Refusal | None:
        """Why the group is refused; None if it may enter, with room made for it."""
        if group.stream and not submission.waited and (refusal := self._refuse_for_wait(submission, group)):
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
        if not self._make_room(group.tenant, group.bytes):
            held = self._count_of("bytes", group.tenant)
            if own.bytes and held + group.bytes > own.bytes:
                return Refusal("bytes", True, held, group.bytes, own.bytes)
            return Refusal("bytes", False, self._count_of("bytes", None), group.bytes, all.bytes)
        self._limit_ended_groups(group.tenant)
        return None

    def _refuse_for_wait(self, submission: Submission, group: Group) -> Refusal | None:
        """The refusal of a group whose expected wait is too long.

        Where no rate is known, the expected wait is at least the time that the tenant's first sequence has waited,
        without that in which all engines slept, unless the group goes before that one. Late sequences and lines of
        batches do not go before it.
        """
        most, now = self._longest_wait(group.tenant), self._now
        if not self.limits.max_queue_wait:
            return None
        ranked = self.limits.order == "priority"
        rank = self._first_rank(submission, group) if ranked else max(round(now * 1e6), self._rank)
        waiting = [sequence for sequence in self._queues.sequences(group.tenant) if sequence.rank <= rank]
        rate, running = self._rates[group.tenant], self._running(group.tenant)
        wait = rate.expected_wait(len(waiting), running, now, self._resumed)
        if waiting and not waiting[0].charged and not rate.known(running):
            wait = max(wait, now - self._waits_since(waiting[0].group))
        return Refusal("queue_wait", True, ceil(wait), 0, ceil(most)) if wait > most else None

    def _longest_wait(self, tenant: str) -> float:
        """Seconds that a request of the tenant may be expected to wait."""
        return min(self.limits.max_queue_wait, self._rates[tenant].patience)

    def _waits_since(self, group: Group) -> float:
        """Since when the group waits for its turn: time in which all engines slept does not count."""
        return max(group.arrival, self._slept)

    def _learn(self, sequence: Sequence) -> None:
        """Learn how long clients wait from a sequence that its seat is about to end.

        A client that leaves a request which has been claimed has cost engine time for nothing. If the wait may be why
        it left, the bound moves towards a quarter of the time that it stayed: the rest is for the answer. Each whole
        answer gives back a little.
        """
        group, rate = sequence.group, self._rates[sequence.group.tenant]
        if not self.limits.max_queue_wait or not group.stream or group.resumable:
            return
        most = self._longest_wait(group.tenant)
        waited, stayed = max(0.0, sequence.claimed - self._waits_since(group)), self._now - group.arrival
        if not sequence.cancelled:
            rate.patience = most + REGAIN * waited
        elif waited >= max(LEAST_WAIT, WAIT_SHARE * stayed):
            rate.patience = most - ADAPT * max(0.0, most - stayed / 4)

    def _is_late(self, sequence: Sequence) -> bool:
        """Whether it has waited for longer than the tenant's clients are seen to wait, and neither ran nor was late
        before."""
        group = sequence.group
        if not group.stream or sequence.charged or sequence.late:
            return False
        most = self._longest_wait(group.tenant)
        return most < self.limits.max_queue_wait and self._now - self._waits_since(group) > most

    def _bytes(self, tenant: str | None = None) -> int:
        return sum(group.bytes for group in self._groups.values() if tenant in (None, group.tenant))

    def _stored(self, tenant: str | None = None) -> list[Group]:
        """Ended groups, oldest first."""
        return [group for group in self._ended if tenant in (None, group.tenant)]

    def _make_room(self, tenant: str, more: int) -> bool:
        """Drop ended groups until `more` bytes fit. Returns False, with nothing dropped, if they cannot fit."""
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
            source = self._tenant_to_drop_from(has, tenant, more, most / len(holders))
            if source is None:
                return False
            self._drop(self._stored(source)[0])
        return True

    def _limit_ended_groups(self, tenant: str) -> None:
        """Drop ended groups until their number is below the bounds."""
        most, own_most = self.limits.max_stored, self.limits.bounds_of(tenant).stored
        if not most and not own_most:
            return
        while own_most and len(self._stored(tenant)) >= own_most:
            self._drop(self._stored(tenant)[0])
        holders = {group.tenant for group in self._groups.values()} | {tenant}
        while most and len(self._stored()) >= most:
            has = {other: len(self._stored(other)) for other in holders}
            source = self._tenant_to_drop_from(has, tenant, 1, most / len(holders))
            if source is None:
                return
            self._drop(self._stored(source)[0])

    def _tenant_to_drop_from(self, has: dict[str, int], tenant: str, more: int, share: float) -> str | None:
        """The tenant whose oldest ended group is dropped for `tenant`: `tenant` itself if it is above its share, else
        the one that is furthest above its share, else `tenant`. None if nothing can be dropped."""
        own = tenant if self._stored(tenant) else None
        if own and has[tenant] + more > share:
            return own
        above = [other for other in has if other != tenant and has[other] > share and self._stored(other)]
        return min(above, key=lambda other: (-has[other], other.encode()), default=own)


def _not_a_line(sequence: Sequence) -> bool:
    """Whether it is not a line of a batch."""
    return not is_line(sequence.group.priority)
