"""ReferencePool: what `RequestPool` means, in plain Python, with a clock of the caller's.

The oracle of the property test, and the pool of the simulator and of in-process benchmarks; never a stand-in where
a real server runs. Every method is atomic up to its first wait, as a script is.
"""

from __future__ import annotations

from services.messages import Exchange, ExchangeReply, Overview, Snapshot, Submission, SubmitReply, TokenEvent
from services.pool.limits import sequence_bytes
from services.pool.reference_rules import CANCELLED, Rules
from services.pool.reference_state import Group, Seat, Sequence

ENTRIES_AT_ONCE = 128


class ReferencePool(Rules):
    """`ReferencePool(clock, limits)` has the methods of `RequestPool`; see there."""

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    # --- gateways ---

    async def submit(self, submission: Submission) -> SubmitReply:
        self._begin()
        self._expire()
        key = None if submission.idempotency_key is None else (submission.tenant, submission.idempotency_key)
        earlier = submission.request if submission.request in self._groups else self._keys.get(key) if key else None
        if earlier is not None:
            self._listen(submission.gateway, self._groups[earlier].ids)
            return SubmitReply(earlier, existed=True)
        if len(self._waiting) + len(submission.sequences) > self.limits.max_waiting:
            return SubmitReply(submission.request, refused="waiting")
        group = Group(submission.request, submission.body, key, sum(map(sequence_bytes, submission.sequences)))
        if not self._make_place(group.bytes):
            return SubmitReply(submission.request, refused="bytes")
        self._groups[group.request] = group
        if key is not None:
            self._keys[key] = group.request
        for new in submission.sequences:
            self._rank = max(int(self._now * 1e6), self._rank + 1)
            self._sequences[new.id] = sequence = Sequence(new, group, self._rank)
            self._wait(sequence)
            group.ids.append(new.id)
            group.open += 1
        self._listen(submission.gateway, group.ids)
        self._ring()
        return SubmitReply(group.request)

    async def cancel(self, request: str) -> bool:
        self._begin()
        unended = [sequence for sequence in self._of(request) if sequence.end is None]
        for sequence in unended:
            if sequence.seat is None:
                self._waiting.remove((sequence.rank, sequence.id))
                self._end(sequence, CANCELLED)
            else:
                sequence.cancelled = True
        self._publish()
        if unended:
            self._ring()
        return bool(unended)

    async def attach(self, gateway: str, from_indices: dict[str, int]) -> list[Snapshot]:
        self._begin()
        self._listen(gateway, list(from_indices))
        return [self._snapshot(id, index) for id, index in from_indices.items()]

    async def heartbeat(self, gateway: str, call: int, counters: dict[str, float], ttl: float = 10.0) -> bool:
        self._begin()
        missed = gateway in self._gaps
        registered = self._register(gateway)
        registered.expires = self._now + ttl
        if call > registered.call:
            self._count(counters)
            registered.call, registered.known, registered.fresh = call, not registered.fresh, False
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
            numbered = [((registered.registration, n), entry) for n, entry in registered.entries]
            for at, entry in [e for e in numbered if last is None or e[0] > last][:ENTRIES_AT_ONCE]:
                if last is not None and at != (last[0], last[1] + 1):
                    self._gaps.add(gateway)
                events += entry
                last = at
        return (f"{last[0]}-{last[1]}" if last else "0"), events

    async def unregister(self, gateway: str) -> None:
        self._begin()
        self._gateways.pop(gateway, None)

    async def sequences(self, request: str) -> list[str]:
        return [sequence.id for sequence in self._of(request)]

    async def body(self, request: str) -> bytes | None:
        group = self._groups.get(request)
        return group.body if group else None

    # --- schedulers ---

    async def acquire(self, seat: str, owner: str, lease: float, dead_epoch: str | None = None) -> str | None:
        self._begin()
        waits = self._reap()
        held = self._seats.setdefault(seat, Seat(seat))
        repeated = False
        if held.epoch is not None and held.epoch == dead_epoch:
            waits += self._reclaim(held)
        elif held.epoch is not None:
            repeated = held.owner == owner and held.call == 0
        self._publish()
        if waits:
            self._ring()
        if held.epoch is not None:
            return held.epoch if repeated else None
        self._epochs += 1
        held.epoch, held.owner, held.call, held.claimed = f"{self._epochs}:{owner}", owner, 0, []
        held.lease, held.expires = lease, self._now + lease
        return held.epoch

    async def release(self, seat: str, epoch: str) -> None:
        self._begin()
        held = self._seats.get(seat)
        if held and held.epoch == epoch:
            if self._vacate(held):
                self._ring()
            self._publish()

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        self._begin()
        seat = self._seats.get(exchange.seat)
        if seat is None or seat.epoch != exchange.epoch:
            return ExchangeReply(owned=False)
        if exchange.call <= seat.call:
            return self._reply(seat, seat.claimed if exchange.call == seat.call else [], [])
        seat.expires = self._now + seat.lease
        self._expire()
        foreign = [commit.id for commit in exchange.commits if not self._commit(seat, commit)]
        waits = self._reap()
        seat.claimed = self._claim(seat, exchange.room)
        self._publish()
        seat.call, seat.gauges, seat.summary = exchange.call, exchange.gauges, exchange.summary
        if exchange.figures:
            seat.figures = self._figures = exchange.figures
        self._count(exchange.counters)
        seat.idle = False
        if waits and self._waiting:
            self._ring()
        self._bells[seat.name].rung = False
        seat.idle = exchange.idle and not seat.claimed
        return self._reply(seat, seat.claimed, foreign)

    async def wait_bell(self, seat: str, timeout: float) -> None:
        bell = self._bells[seat]
        if not bell.rung:
            await bell.waiters.wait(self._clock, timeout)
        bell.rung = False

    # --- observers ---

    async def overview(self) -> Overview:
        self._now = self._clock.now()
        seats = [self._view(seat) for seat in self._seats.values()]
        living = [seat.figures for seat in seats if seat.alive and seat.figures]
        running = sum(len(seat.running) for seat in self._seats.values())
        return Overview(
            waiting=len(self._waiting),
            running=running,
            ended=len(self._sequences) - len(self._waiting) - running,
            bytes=sum(group.bytes for group in self._groups.values()),
            figures=max(living, key=lambda f: f.num_slots, default=self._figures),
            seats=seats,
            counters=dict(self._counters),
            gateways=sum(gateway.expires > self._now for gateway in self._gateways.values()),
        )
