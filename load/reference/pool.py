"""ReferencePool: the behaviour of `RequestPool` in plain Python, with a clock of the caller's.

It is the oracle of the property test, and the pool of the simulator and of in-process benchmarks. It never replaces a
real server where one runs. Every method is atomic until its first wait, as a script is.

The rules after the methods are the counterparts of the Lua fragments. Nothing is counted in advance: each check of a
bound looks at all groups.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from itertools import takewhile
from math import ceil, inf

from load.reference.service_rate import ServiceRate
from load.reference.state import Bell, Clock, Gateway, Group, LastReply, Seat, Sequence, Waiters
from load.reference.turns import TenantQueues
from services.messages import (
    Commit,
    End,
    EngineFigures,
    Exchange,
    ExchangeReply,
    Room,
    Snapshot,
    Submission,
    SubmitReply,
    TokenEvent,
)
from services.messages import Group as GroupView
from services.overview import Overview, SeatOverview, SleepLevel
from services.pool.group_packing import pack_group
from services.pool.limits import BEHIND, Bounds, Limits
from services.pool.scripts import CANCELLED, POISON, SEATS_LOST, TIMEOUT, TOO_LARGE, UNSERVED
from services.requests import Refusal, Tenure, is_line, needs_of
from services.seats import ClusterSeats, SeatGrant, cluster_of, engine_of

ENTRIES_AT_ONCE = 128
GATEWAY_TTL = 10.0  # seconds, until a gateway's first heartbeat
OUTAGE = 5.0  # seconds without any call, after which gateways and graces are extended by that time
LEAST_WAIT = 1.0  # seconds; nobody leaves for a shorter wait
WAIT_SHARE = 0.18  # of the time that a client stayed; if less of it was waiting, the wait is not why it left
ADAPT = 0.25  # how far a client that leaves moves the bound
REGAIN = 1 / 300  # of the wait for a whole answer
SEAT_KEPT = 3600.0
MAX_STRIKES = 3
MAX_SOFT_STRIKES = 6
SUSPECT = 2  # strikes from which on a scheduler runs a sequence alone
RETURN_TIME = 900.0  # seconds within which a seat that lost its owner may have one again: a start may take so long


class ReferencePool:
    """The methods of `RequestPool`, documented there, and then the rules that they have in common."""

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
        self._rates: defaultdict[str, ServiceRate] = defaultdict(ServiceRate)
        self._claims: Counter[str] = Counter()  # tenant -> sequences that the previous call claimed

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    # --- gateways ---

    async def submit(self, submission: Submission) -> SubmitReply:
        self._begin()
        self._drop_expired()
        key = None if submission.idempotency_key is None else (submission.tenant, submission.idempotency_key)
        earlier = submission.request if submission.request in self._groups else self._keys.get(key) if key else None
        if earlier is not None:
            self._add_listener(submission.gateway, self._groups[earlier].ids)
            return SubmitReply(earlier, existed=True)
        group = self._new_group(submission, key)
        if refusal := self._refusal(submission, group):
            return SubmitReply(submission.request, refused=refusal)
        self._groups[group.request] = group
        if key is not None:
            self._keys[key] = group.request
        first = self._first_rank(submission, group)
        for i, new in enumerate(submission.sequences):
            tokens, logprobs = list(new.output), list(new.logprobs or ())
            sequence = self._sequences[new.id] = Sequence(new, group, first + i, tokens=tokens, logprobs=logprobs)
            self._enqueue(sequence)
            group.ids.append(new.id)
            group.open += 1
        self._add_listener(submission.gateway, group.ids)
        self._wake_idle_seats()
        return SubmitReply(group.request)

    async def cancel(self, request: str) -> bool:
        self._begin()
        open = self._cancel(request)
        self._publish_events()
        if open:
            self._wake_idle_seats()
        return open

    async def unlisten(self, gateway: str, request: str) -> None:
        self._begin()
        group = self._groups.get(request)
        if group is None or group.open == 0:
            return
        if listener := self._gateways.get(gateway):
            listener.listening.difference_update(group.ids)
        if group.resumable or group.background:
            self._abandon_without_listener(group)
        elif not self._has_listener(group):
            self._cancel(request)
            self._publish_events()
            self._wake_idle_seats()

    async def delete(self, request: str) -> bool:
        self._begin()
        group = self._groups.get(request)
        if group is None or group.deleted:
            return False
        if group.open == 0:
            self._drop(group)
            return True
        self._free_key(group)
        group.deleted = True
        self._cancel(request)
        self._publish_events()
        self._wake_idle_seats()
        return True

    async def group(self, request: str) -> GroupView | None:
        g = self._groups.get(request)
        if g is None or g.deleted:
            return None
        return GroupView(request, g.tenant, list(g.ids), g.body, g.open == 0, g.resumable, g.background, g.trace)

    async def knows(self, request: str, tenant: str, idempotency_key: str | None) -> bool:
        return await self.group(request) is not None or (tenant, idempotency_key) in self._keys

    async def listen(self, gateway: str, from_indices: dict[str, int]) -> list[Snapshot]:
        self._begin()
        self._add_listener(gateway, list(from_indices))
        return [self._snapshot(id, index) for id, index in from_indices.items()]

    async def heartbeat(
        self,
        gateway: str,
        call: int,
        counters: dict[str, float],
        ttl: float = 10.0,
        gauges: dict[str, float] | None = None,
    ) -> bool:
        self._begin()
        wake = self._cancel_abandoned()
        if self._end_overdue() or wake:
            self._publish_events()
            self._wake_idle_seats()
        missed = gateway in self._gaps
        registered = self._register_gateway(gateway)
        registered.expires = self._now + ttl
        if call > registered.call:
            self._add_counters(counters)
            registered.known = not registered.fresh and call == registered.call + 1
            registered.call, registered.fresh = call, False
            registered.gauges = gauges or {}
        self._gaps.discard(gateway)
        return registered.known and not missed

    async def read_events(self, gateway: str, after: str, timeout: float) -> tuple[str, list[TokenEvent]]:
        deadline = self._clock.now() + timeout
        while True:
            cursor, events = self._read(gateway, after)
            left = deadline - self._clock.now()
            if events or left <= 0 or not await self._arrivals[gateway].wait(self._clock, left):
                return cursor, events

    def _read(self, gateway: str, after: str) -> tuple[str, list[TokenEvent]]:
        last = tuple(map(int, after.split("-"))) if after != "0" else None
        events: list[TokenEvent] = []
        if registered := self._gateways.get(gateway):
            newest_first = (((registered.registration, n), entry) for n, entry in reversed(registered.entries))
            newer = list(takewhile(lambda e: last is None or e[0] > last, newest_first))
            for at, entry in newer[: -ENTRIES_AT_ONCE - 1 : -1]:
                if last is not None and at != (last[0], last[1] + 1):
                    self._gaps.add(gateway)
                events += entry
                last = at
        return (f"{last[0]}-{last[1]}" if last else "0"), events

    async def unregister(self, gateway: str) -> None:
        self._begin()
        self._forget_gateway(gateway)

    async def hold(self, name: str, holder: str, seconds: float) -> str | None:
        now = self._clock.now()
        other, epoch, until = self._holds.get(name, ("", "", 0.0))
        if until <= now:
            self._begin()
            self._epochs += 1
            epoch = str(self._epochs)
        elif other != holder:
            return None
        self._holds[name] = holder, epoch, now + seconds
        return epoch

    async def adapters(self) -> bytes:
        return self._adapters[1]

    async def adapt(self, version: int, registry: bytes) -> bool:
        self._begin()
        if version > self._adapters[0]:
            self._adapters = version, registry
        return self._adapters == (version, registry)

    async def adapted(self) -> dict[str, str]:
        open = [group.ids[0] for group in self._groups.values() if group.open]
        named = {id: self._sequences[id] for id in open}
        return {each.group.request: digest for each in named.values() if (digest := each.new.sampling.adapter)}

    async def unhold(self, name: str, holder: str) -> None:
        if self._holds.get(name, ("",))[0] == holder:
            del self._holds[name]

    # --- schedulers ---

    async def acquire(
        self, seat: str, owner: str, lease: float, dead_epoch: str | None = None, after: int = 0
    ) -> SeatGrant:
        self._begin()
        wake = self._cancel_abandoned()
        wake |= self._end_overdue()
        wake |= self._reclaim_expired() > 0
        held = self._seats.setdefault(seat, Seat(seat))
        if held.epoch is not None and held.epoch == dead_epoch:
            wake |= self._reclaim(held) > 0
        self._publish_events()
        if wake:
            self._wake_idle_seats()
        if held.epoch is not None:
            return SeatGrant(held.owner == owner and held.call == 0, held.epoch, held.owner, self._is_surplus(seat))
        self._epochs = max(self._epochs, after) + 1
        held.epoch, held.owner, held.call = f"{self._epochs}:{owner}", owner, 0
        held.lease, held.expires = lease, self._now + lease
        return SeatGrant(True, held.epoch, owner, self._is_surplus(seat))

    async def release(
        self,
        seat: str,
        epoch: str,
        struck: Many[str] = (),
        removed: bool = False,
        counters: Mapping[str, float] | None = None,
    ) -> bool:
        self._begin()
        held = self._seats.get(seat)
        if held is None or held.epoch != epoch:
            return held is not None and held.released == epoch
        for id in set(struck):
            self._strike(held, id)
        held.released = epoch
        if self._vacate(held, taken=False):
            self._wake_idle_seats()
        if removed and self._is_surplus(seat):
            self._forget_seat(seat)
        self._publish_events()
        self._add_counters(counters or {})
        return True

    async def engines(self, cluster: str, configured: int, announce: bool = False) -> ClusterSeats:
        if cluster not in self._wanted or (announce and self._configured.get(cluster) != configured):
            self._begin()
            self._wanted[cluster] = self._configured[cluster] = configured
        indices = sorted(int(engine_of(seat)) for seat in self._seats if cluster_of(seat) == cluster)
        return ClusterSeats(self._wanted[cluster], indices)

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        self._begin()
        seat = self._seats.get(exchange.seat)
        if seat is None or seat.epoch != exchange.epoch:
            return ExchangeReply(owned=False)
        if exchange.call <= seat.call:
            return self._exchange_reply(seat, seat.reply if exchange.call == seat.call else LastReply())
        seat.expires = self._now + seat.lease
        if not exchange.room.longest and _sleeps(exchange.gauges) and not self._is_awake(exchange.seat):
            self._resumed = self._slept = self._now
        self._drop_expired()
        requeued, reply = 0, LastReply()
        ended = self._commit(seat, exchange.commits, reply)
        if exchange.holds is not None:
            requeued += self._requeue_all_but(seat, exchange.holds, ended, reply)
        else:
            reply.lost = exchange.call > seat.call + 1
        if exchange.room.longest:
            seat.longest, seat.features = exchange.room.longest, exchange.room.features
        abandoned = self._cancel_abandoned()
        requeued += self._reclaim_expired()
        overdue = self._end_overdue()
        reply.claimed = [] if reply.lost or self._is_surplus(seat.name) else self._claim(seat, exchange.room)
        reply.forgotten = sorted(seat.forgotten)
        seat.forgotten.clear()
        self._publish_events()
        seat.call, seat.reply, seat.gauges, seat.summary = exchange.call, reply, exchange.gauges, exchange.summary
        if exchange.figures:
            seat.figures = self._figures = exchange.figures
        self._add_counters(exchange.counters)
        seat.idle = False
        if abandoned or overdue or (requeued and self._queues.waiting):
            self._wake_idle_seats()
        self._bells[seat.name].rung = False
        seat.idle = exchange.idle and not reply.claimed and not reply.lost
        return self._exchange_reply(seat, reply)

    def _is_awake(self, but: str) -> bool:
        """Whether a seat with an owner, other than `but`, has an engine with weights."""
        others = [seat for seat in self._seats.values() if seat.epoch is not None and seat.name != but]
        return any(seat.gauges.get("ready") == 1 and not _sleeps(seat.gauges) for seat in others)

    async def wait_bell(self, seat: str, timeout: float) -> None:
        bell = self._bells[seat]
        if not bell.rung:
            await bell.waiters.wait(self._clock, timeout)
        bell.rung = False

    # --- observers ---

    async def scale(self, cluster: str, engines: int) -> None:
        self._begin()
        self._wanted[cluster] = engines
        self._wake_idle_seats()

    async def overview(self) -> Overview:
        self._now = self._clock.now()
        seats = [self._view(seat) for seat in self._seats.values()]
        living = [seat.figures for seat in seats if seat.alive and seat.figures]
        running = sum(len(seat.running) for seat in self._seats.values())
        gateways = {name: gateway for name, gateway in self._gateways.items() if gateway.expires > self._now}
        return Overview(
            waiting=self._queues.waiting,
            running=running,
            ended=len(self._sequences) - self._queues.waiting - running,
            bytes=sum(group.bytes for group in self._groups.values()),
            figures=max(living, key=lambda f: (f.longest, len(f.features)), default=self._figures),
            seats=seats,
            counters=dict(self._counters),
            gateways=len(gateways),
            gateway_gauges={name: gateway.gauges for name, gateway in gateways.items() if gateway.gauges},
            waiting_tokens=sum(len(sequence.new.prompt) for sequence in self._queues.sequences(None)),
            wanted=dict(self._wanted),
        )

    # --- rules that the methods have in common ---

    # --- time ---

    def _begin(self) -> None:
        """Begin a call that may write: extend leases, registrations and graces after an outage, and forget gateways
        whose registration expired."""
        if self.limits.max_queue_wait:
            self._record_rates()
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

    # --- bounds and rates ---

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

    # --- exchange ---

    def _commit(self, seat: Seat, commits: list[Commit], reply: LastReply) -> set[str]:
        """Append the tokens that are new. Returns the ids that ended."""
        ended: set[str] = set()
        for commit in commits:
            sequence = seat.running.get(commit.id)
            if sequence is None:
                if commit.id not in ended:
                    reply.foreign.add(commit.id)
            elif commit.id in reply.lacking or commit.index > len(sequence.tokens):
                reply.lacking.setdefault(commit.id, len(sequence.tokens))
            else:
                self._append(sequence, commit)
                if commit.end is not None:
                    ended.add(commit.id)
                    del seat.running[commit.id]
                    self._learn(sequence)
                    self._end(sequence, commit.end)
        return ended

    def _append(self, sequence: Sequence, commit: Commit) -> None:
        before = len(sequence.tokens)
        for index in range(before, commit.index + len(commit.tokens)):
            token = commit.tokens[index - commit.index]
            logprob = commit.logprobs[index - commit.index] if commit.logprobs else None
            sequence.tokens.append(token)
            if logprob is not None:
                sequence.logprobs.append(logprob)
            self._queue_event(sequence, TokenEvent(sequence.id, index, token, logprob))
        self._queues.charge(sequence, before, commit.end is not None, self._now)

    def _requeue_all_but(self, seat: Seat, holds: list[str], ended: set[str], reply: LastReply) -> int:
        """Requeue what runs at the seat except `holds`. Returns how many sequences wait again."""
        lost = [sequence for id, sequence in seat.running.items() if id not in holds]
        for sequence in lost:
            del seat.running[sequence.id]
            reply.lacking.pop(sequence.id, None)
        reply.foreign.update(id for id in holds if id not in seat.running and id not in ended)
        return sum(self._requeue(sequence, seat.name, seat.epoch, taken=True) for sequence in lost)

    def _claim(self, seat: Seat, room: Room) -> list[str]:
        """Claim sequences by turns, up to the first that does not fit, as `Select` of the Orca paper does in its order.

        A sequence that can never fit into this seat's engine is skipped, or ends if no other seat can hold it.
        """
        claimed: list[str] = []
        requests, blocks = room.requests, room.blocks
        guests, present = room.guests, set(room.tenants)
        while sequence := self._queues.next():
            if len(claimed) >= room.requests + room.guests + sum(r for _, r, _ in room.yields):
                break
            if not _can_serve(room, sequence):
                if any(not other.longest or _can_serve(other, sequence) for other in self._others(seat)):
                    self._queues.skip(sequence)
                else:
                    self._queues.dequeue(sequence, self._now)
                    self._end(sequence, UNSERVED if needs_of(sequence.new.sampling) else TOO_LARGE)
                continue
            if self._is_late(sequence):
                self._queues.put_behind(sequence, round(self.limits.max_queue_wait * 1e6), self._now)
                continue
            yielded = [(r, b) for priority, r, b in room.yields if priority > sequence.group.priority]
            requests, blocks = requests - 1, blocks - sequence.blocks(room)
            if blocks + sum(b for _, b in yielded) < 0:
                break
            if requests + sum(r for r, _ in yielded) < 0:
                if guests < 1 or sequence.group.tenant in present or is_line(sequence.group.priority):
                    break
                guests -= 1
            present.add(sequence.group.tenant)
            self._queues.take(sequence, self._now)
            sequence.seat, sequence.claimed, sequence.group.deadline = seat, self._now, inf
            seat.running[sequence.id] = sequence
            claimed.append(sequence.id)
            self._claims[sequence.group.tenant] += not is_line(sequence.group.priority)
        self._queues.end_claim(self._now)
        return claimed

    def _others(self, seat: Seat) -> list[Seat]:
        """Return the other seats that have an owner or may soon have one again."""
        others = [other for other in self._seats.values() if other is not seat]
        return [o for o in others if o.epoch is not None or o.vacant_since + RETURN_TIME >= self._now]

    def _exchange_reply(self, seat: Seat, reply: LastReply) -> ExchangeReply:
        cancelled = sorted(sequence.id for sequence in seat.running.values() if sequence.cancelled)
        claims = [self._sequences[id].claim(self._now) for id in reply.claimed]
        surplus = self._is_surplus(seat.name)
        foreign, lacking = sorted(reply.foreign), dict(reply.lacking)
        return ExchangeReply(True, claims, cancelled, foreign, lacking, reply.lost, surplus, reply.forgotten)

    # --- ownership ---

    def _is_surplus(self, seat: str) -> bool:
        """Whether the seat has an index from the number of wanted engines on."""
        wanted = self._wanted.get(cluster_of(seat))
        return wanted is not None and int(engine_of(seat)) >= wanted

    def _forget_seat(self, seat: str) -> None:
        """Forget a seat that has no owner, and with the last one of its cluster how many engines that is to have."""
        del self._seats[seat]
        if not any(cluster_of(other) == cluster_of(seat) for other in self._seats):
            self._wanted.pop(cluster_of(seat), None)
            self._configured.pop(cluster_of(seat), None)

    def _requeue(self, sequence: Sequence, seat: str, epoch: str | None, taken: bool) -> bool:
        """Put a sequence that left its seat back into the queue; end it if cancelled. `taken`: its owner is dead or
        silent, or does not know it. Returns whether it waits."""
        sequence.left = Tenure(seat, epoch or "", sequence.claimed, self._now, taken)
        if sequence.cancelled:
            self._end(sequence, CANCELLED)
        else:
            self._enqueue(sequence)
        return not sequence.cancelled

    def _vacate(self, seat: Seat, taken: bool) -> int:
        """Take the seat from its owner and requeue what it runs; `taken` as for `_requeue`. Returns how many sequences
        wait again."""
        (running, seat.running), epoch = (seat.running, {}), seat.epoch
        seat.forgotten.clear()
        seat.epoch, seat.owner, seat.idle, seat.vacant_since = None, "", False, self._now
        self._bells[seat.name].rung = False
        return sum(self._requeue(sequence, seat.name, epoch, taken) for sequence in running.values())

    def _reclaim(self, seat: Seat) -> int:
        """Take the seat from an owner that is dead or silent. Returns how many sequences wait again."""
        self._strike_softly(seat)
        requeued = self._vacate(seat, taken=True)
        if requeued:
            self._add_counters({"orca:reclaimed_requests": requeued})
        return requeued

    def _reclaim_expired(self) -> int:
        """Reclaim seats whose lease expired. Returns how many sequences wait again."""
        owned = [seat for seat in self._seats.values() if seat.epoch is not None]
        requeued = sum(self._reclaim(seat) for seat in owned if seat.expires <= self._now)
        for seat in list(self._seats.values()):
            if seat.epoch is None and seat.vacant_since + SEAT_KEPT <= self._now:
                self._forget_seat(seat.name)
        return requeued

    def _strike_softly(self, seat: Seat) -> None:
        """Strike what may have run in the last iteration: the suspect, which runs alone; else all sequences, without
        lines of batches where both ran."""
        lines = [s for s in seat.running.values() if is_line(s.group.priority)]
        others = [s for s in seat.running.values() if not is_line(s.group.priority)]
        hit = others or lines
        suspects = sorted((s for s in hit if s.recent_strikes >= SUSPECT), key=lambda s: (s.rank, s.id))
        for sequence in suspects[:1] or hit:
            self._strike(seat, sequence.id, soft=True)

    def _strike(self, seat: Seat, id: str, soft: bool = False) -> None:
        """Strike a sequence because the seat's engine died while it ran, or, if `soft`, because the owner did."""
        sequence = seat.running.get(id)
        if sequence is None or sequence.cancelled:
            return
        recent = sequence.recent_strikes
        sequence.strikes, sequence.soft = recent + 1, (sequence.soft if recent else 0) + soft
        sequence.struck_at = len(sequence.tokens)
        end = SEATS_LOST if sequence.soft >= MAX_SOFT_STRIKES else None
        end = POISON if sequence.strikes - sequence.soft >= MAX_STRIKES else end
        if end is not None:
            del seat.running[id]
            self._end(sequence, end)
            self._add_counters({"orca:poisoned_requests": 1})

    def _view(self, seat: Seat) -> SeatOverview:
        alive = seat.epoch is not None and seat.expires > self._now
        running, gauges = len(seat.running), dict(seat.gauges)
        return SeatOverview(seat.name, alive, seat.figures, running, gauges, seat.summary, seat.owner, seat.epoch or "")


def _sleeps(gauges: dict[str, float]) -> bool:
    """Whether an engine has no weights because it sleeps."""
    return gauges.get("sleep", 0.0) >= SleepLevel.COLD


def _not_a_line(sequence: Sequence) -> bool:
    """Whether it is not a line of a batch."""
    return not is_line(sequence.group.priority)


def _can_serve(engine: Room | Seat, sequence: Sequence) -> bool:
    """Whether an engine has the size and the features that a sequence needs."""
    fits = not engine.longest or sequence.max_tokens <= engine.longest
    return fits and needs_of(sequence.new.sampling).keys() <= set(engine.features)
