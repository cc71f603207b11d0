"""GroupRules: how groups enter, wait, end and are dropped, and which gateways hear of it.

The counterpart of the Lua fragments `begin`, `notify`, `gateways`, `cancellation`, `end_sequence` and `drop`.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf

from load.reference.state import Bell, Clock, Gateway, Group, Seat, Sequence, Waiters
from load.reference.turns import TenantQueues
from services.messages import End, EngineFigures, Snapshot, Submission, TokenEvent
from services.pool.group_packing import pack_group
from services.pool.limits import BEHIND, Limits
from services.pool.scripts import CANCELLED, TIMEOUT
from services.requests import is_line

GATEWAY_TTL = 10.0  # seconds, until a gateway's first heartbeat
OUTAGE = 5.0  # seconds without any call, after which gateways and graces are extended by that time


class GroupRules:
    """The state of the model, and the rules of groups, sequences and gateways.

    `ReferencePool` is a chain of classes, each of which adds rules that use those before it:
    `GroupRules` -> `BoundRules` (which submissions are refused) -> `SeatRules` (commits, claims, leases, strikes) ->
    `ReferencePool` (the methods of `RequestPool`).
    """

    def __init__(self, clock: Clock, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._now = self._stamp = clock.now()
        self._resumed = 0.0  # when the last outage ended, or all engines were last seen asleep
        self._slept = 0.0  # when all engines were last seen asleep
        self._rank = self._epochs = self._registrations = 0
        self._groups: dict[str, Group] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._sequences: dict[str, Sequence] = {}
        self._queues = TenantQueues(self.limits)
        self._ended: list[Group] = []  # oldest first
        self._abandoned: dict[str, float] = {}  # request -> when it is cancelled
        self._seats: dict[str, Seat] = {}
        self._wanted: dict[str, int] = {}  # cluster -> number of engines that it is to have
        self._configured: dict[str, int] = {}  # cluster -> the number that was announced last
        self._bells: defaultdict[str, Bell] = defaultdict(Bell)
        self._gateways: dict[str, Gateway] = {}
        self._arrivals: defaultdict[str, Waiters] = defaultdict(Waiters)
        self._gaps: set[str] = set()
        self._adapters = 0, b""  # version and registry
        self._holds: dict[str, tuple[str, str, float]] = {}  # lock -> holder, epoch, when it is free again
        self._counters: defaultdict[str, float] = defaultdict(float)
        self._figures: EngineFigures | None = None
        self._outbox: defaultdict[str, list[TokenEvent]] = defaultdict(list)

    # --- time ---

    def _begin(self) -> None:
        """Begin a call that may write: extend leases, registrations and graces after an outage, and forget gateways
        whose registration expired."""
        self._now = self._clock.now()
        gap, self._stamp = self._now - self._stamp, self._now
        for seat in self._seats.values():
            if seat.epoch is not None and (gap < 0 or gap > seat.lease / 2):
                seat.expires = self._now + seat.lease
        if gap < 0 or gap > OUTAGE:
            self._resumed = self._now
            for gateway in self._gateways.values():
                gateway.expires += gap
            for request in self._abandoned:
                self._abandoned[request] += gap
        for name in [name for name, gateway in self._gateways.items() if gateway.expires <= self._now]:
            self._forget_gateway(name)

    def _drop_expired(self) -> None:
        while self._ended and self._ended[0].ended_at <= self._now - self.limits.keep_ended:
            self._drop(self._ended[0])

    def _drop(self, group: Group) -> None:
        """Forget an ended group."""
        self._ended.remove(group)
        del self._groups[group.request]
        for id in group.ids:
            sequence = self._sequences.pop(id)
            if group.remember and sequence.seat and sequence.seat.epoch is not None:
                sequence.seat.forgotten.add(id)
        self._free_key(group)

    def _free_key(self, group: Group) -> None:
        if group.key is not None:
            del self._keys[group.key]
            group.key = None

    def _new_group(self, submission: Submission, key: tuple[str, str] | None) -> Group:
        s, ttft = submission, submission.ttft
        if self.limits.order == "priority" and not is_line(s.priority):
            ttft = ttft or self.limits.ttft_target
        deadline = bool(s.queue_timeout) and not any(new.output for new in s.sequences)
        return Group(
            s.request,
            s.tenant,
            s.body,
            key,
            pack_group(s),
            s.resumable,
            s.background,
            s.priority,
            ttft,
            arrival=self._now - s.waited,
            stream=not s.background and not is_line(s.priority),
            deadline=self._now - s.waited + s.queue_timeout if deadline else inf,
            trace=s.trace,
            remember=s.remember,
        )

    def _first_rank(self, submission: Submission, group: Group) -> int:
        """The rank, in microseconds, of the group's first sequence; the others follow one apart."""
        later = BEHIND if is_line(submission.priority) else 0.0
        if self.limits.order == "priority" and not later:
            return round((group.arrival + group.priority * self.limits.ageing + group.ttft) * 1e6)
        if submission.waited:
            return round((group.arrival + later) * 1e6)
        first = max(round(self._now * 1e6), self._rank + 1)
        self._rank = first + len(submission.sequences) - 1
        return first + round(later * 1e6)

    # --- sequences ---

    def _sequences_of(self, request: str) -> list[Sequence]:
        group = self._groups.get(request)
        return [self._sequences[id] for id in group.ids] if group else []

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.seat = None
        self._queues.enqueue(sequence, self._now)

    def _end(self, sequence: Sequence, end: End) -> None:
        """End a sequence, which the caller has removed from its queue or its seat."""
        sequence.end = end
        self._queue_event(sequence, TokenEvent(sequence.id, len(sequence.tokens), None, end=end))
        for gateway in self._gateways.values():
            gateway.listening.discard(sequence.id)
        group = sequence.group
        group.open -= 1
        group.bytes -= sequence.unused_bytes
        if group.open == 0:
            group.bytes -= group.inputs
            group.ended_at = self._now
            insort(self._ended, group, key=lambda group: (group.ended_at, group.request))
            self._abandoned.pop(group.request, None)
            if group.deleted:
                self._drop(group)

    def _cancel(self, request: str) -> bool:
        """Cancel a group. Returns False if it is unknown or has ended."""
        self._abandoned.pop(request, None)
        unended = [sequence for sequence in self._sequences_of(request) if sequence.end is None]
        for sequence in unended:
            if sequence.seat is None:
                self._queues.dequeue(sequence, self._now)
                self._end(sequence, CANCELLED)
            else:
                sequence.cancelled = True
        return bool(unended)

    def _cancel_abandoned(self) -> bool:
        """Cancel groups whose grace is over. Returns whether there were any."""
        overdue = sorted((at, request) for request, at in self._abandoned.items() if at <= self._now)
        for _, request in overdue:
            self._cancel(request)
        return bool(overdue)

    def _end_overdue(self) -> bool:
        """End groups of which no sequence was claimed by the deadline. Returns whether there were any."""
        overdue = [group for group in self._groups.values() if group.open and group.deadline <= self._now]
        for group in sorted(overdue, key=lambda group: (group.deadline, group.request)):
            for sequence in self._sequences_of(group.request):
                if sequence.end is None:
                    self._queues.dequeue(sequence, self._now)
                    self._end(sequence, TIMEOUT)
                    self._add_counters({"orca:timed_out_requests": 1})
        return bool(overdue)

    def _snapshot(self, id: str, index: int) -> Snapshot:
        sequence = self._sequences.get(id)
        if sequence is None:
            return Snapshot(id, known=False)
        index = min(index, len(sequence.tokens))
        logprobs = sequence.logprobs[index:] or None
        prompt = len(sequence.new.prompt)
        return Snapshot(id, True, prompt, index, sequence.tokens[index:], logprobs, sequence.end)

    # --- gateways ---

    def _register_gateway(self, name: str) -> Gateway:
        if name not in self._gateways:
            self._registrations += 1
            self._gateways[name] = Gateway(self._registrations, self._now + GATEWAY_TTL)
        return self._gateways[name]

    def _forget_gateway(self, name: str) -> None:
        if gateway := self._gateways.pop(name, None):
            for group in {
                self._sequences[id].group.request: self._sequences[id].group for id in gateway.listening
            }.values():
                self._abandon_without_listener(group)

    def _add_listener(self, gateway: str, ids: Iterable[str]) -> None:
        listening = self._register_gateway(gateway).listening
        for id in ids:
            sequence = self._sequences.get(id)
            if sequence is not None and sequence.end is None:
                listening.add(id)
                self._abandoned.pop(sequence.group.request, None)

    def _has_listener(self, group: Group) -> bool:
        return any(not gateway.listening.isdisjoint(group.ids) for gateway in self._gateways.values())

    def _abandon_without_listener(self, group: Group) -> None:
        """Start the grace of a group that has no listener, unless it runs in the background."""
        if not group.background and not self._has_listener(group):
            self._abandoned.setdefault(group.request, self._now + self.limits.grace)

    def _queue_event(self, sequence: Sequence, event: TokenEvent) -> None:
        for name, gateway in self._gateways.items():
            if sequence.id in gateway.listening:
                self._outbox[name].append(event)

    def _publish_events(self) -> None:
        for name, events in self._outbox.items():
            gateway = self._gateways[name]
            gateway.count += 1
            gateway.entries.append((gateway.count, events))
            self._arrivals[name].wake()
        self._outbox.clear()

    # --- seats and counters ---

    def _wake_idle_seats(self) -> None:
        for seat in self._seats.values():
            if seat.idle:
                seat.idle = False
                self._bells[seat.name].rung = True
                self._bells[seat.name].waiters.wake()

    def _add_counters(self, increments: Mapping[str, float]) -> None:
        for name, by in increments.items():
            self._counters[name] += by
