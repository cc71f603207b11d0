"""ReferencePool: the behaviour of `RequestPool` in plain Python, with a clock of the caller's.

It is the oracle of the property test, and the pool of the simulator and of in-process benchmarks. It never replaces a
real server where one runs. Every method is atomic until its first wait, as a script is.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from itertools import takewhile

from load.reference.seats import SeatRules
from load.reference.state import LastReply, Seat, Sequence
from services.messages import (
    Exchange,
    ExchangeReply,
    Snapshot,
    Submission,
    SubmitReply,
    TokenEvent,
)
from services.messages import Group as GroupView
from services.overview import Overview, SleepLevel
from services.seats import ClusterSeats, SeatGrant, cluster_of, engine_of

ENTRIES_AT_ONCE = 128


class ReferencePool(SeatRules):
    """The methods of `RequestPool`, documented there. `GroupRules` describes the chain of classes."""

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


def _sleeps(gauges: dict[str, float]) -> bool:
    """Whether an engine has no weights because it sleeps."""
    return gauges.get("sleep", 0.0) >= SleepLevel.COLD
