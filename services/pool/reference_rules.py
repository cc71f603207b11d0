"""The rules of the pool, on plain objects; what the methods of `ReferencePool` have in common."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict

from services.messages import Commit, End, EngineFigures, ExchangeReply, Room, Snapshot, TokenEvent
from services.messages import Seat as SeatView
from services.pool.limits import Limits
from services.pool.reference_state import Bell, Clock, Gateway, Group, Seat, Sequence, Waiters
from services.pool.scripts import LOST_TOKENS
from services.requests import FinishReason

GATEWAY_TTL = 10.0  # seconds, until a gateway's first heartbeat
SEAT_KEPT = 3600.0
CANCELLED = End(FinishReason.CANCELLED)


class Rules:
    def __init__(self, clock: Clock, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._now = self._stamp = clock.now()
        self._rank = self._epochs = self._registrations = 0
        self._groups: dict[str, Group] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[tuple[int, str]] = []  # by rank
        self._ended: list[Group] = []  # the oldest first
        self._seats: dict[str, Seat] = {}
        self._bells: defaultdict[str, Bell] = defaultdict(Bell)
        self._gateways: dict[str, Gateway] = {}
        self._arrivals: defaultdict[str, Waiters] = defaultdict(Waiters)
        self._gaps: set[str] = set()
        self._counters: defaultdict[str, float] = defaultdict(float)
        self._figures: EngineFigures | None = None
        self._outbox: defaultdict[str, list[TokenEvent]] = defaultdict(list)

    # --- time ---

    def _begin(self) -> None:
        """Every call that can write: leases are given anew after an outage, gateways that fell silent are forgotten."""
        self._now = self._clock.now()
        gap, self._stamp = self._now - self._stamp, self._now
        for seat in self._seats.values():
            if seat.epoch is not None and (gap < 0 or gap > seat.lease / 2):
                seat.expires = self._now + seat.lease
        for name in [name for name, gateway in self._gateways.items() if gateway.expires <= self._now]:
            del self._gateways[name]

    def _expire(self) -> None:
        while self._ended and self._ended[0].ended_at <= self._now - self.limits.keep_ended:
            self._drop(self._ended.pop(0))

    def _make_place(self, more: int) -> bool:
        total = sum(group.bytes for group in self._groups.values()) + more
        if total - sum(group.bytes for group in self._ended) > self.limits.max_bytes:
            return False
        while total > self.limits.max_bytes:
            total -= self._ended[0].bytes
            self._drop(self._ended.pop(0))
        return True

    def _drop(self, group: Group) -> None:
        del self._groups[group.request]
        for id in group.ids:
            del self._sequences[id]
        if group.key is not None:
            del self._keys[group.key]

    # --- sequences ---

    def _of(self, request: str) -> list[Sequence]:
        group = self._groups.get(request)
        return [self._sequences[id] for id in group.ids] if group else []

    def _wait(self, sequence: Sequence) -> None:
        sequence.seat = None
        insort(self._waiting, (sequence.rank, sequence.id))

    def _end(self, sequence: Sequence, end: End) -> None:
        """Of a sequence that neither waits nor runs any more."""
        sequence.end, sequence.seat = end, None
        self._tell(sequence, TokenEvent(sequence.id, len(sequence.tokens), None, end=end))
        for gateway in self._gateways.values():
            gateway.listening.discard(sequence.id)
        sequence.group.open -= 1
        if sequence.group.open == 0:
            sequence.group.ended_at = self._now
            insort(self._ended, sequence.group, key=lambda group: (group.ended_at, group.request))

    def _commit(self, seat: Seat, commit: Commit) -> bool:
        """Append what is new. False if the sequence is not the seat's, though the scheduler thinks it goes on."""
        sequence = seat.running.get(commit.id)
        if sequence is None:
            return commit.end is not None
        have = len(sequence.tokens)
        if commit.index > have:
            del seat.running[commit.id]
            self._end(sequence, LOST_TOKENS)
            return True
        for index in range(have, commit.index + len(commit.tokens)):
            token = commit.tokens[index - commit.index]
            logprob = commit.logprobs[index - commit.index] if commit.logprobs else None
            sequence.tokens.append(token)
            if logprob is not None:
                sequence.logprobs.append(logprob)
            self._tell(sequence, TokenEvent(sequence.id, index, token, logprob))
        if commit.end is not None:
            del seat.running[commit.id]
            self._end(sequence, commit.end)
        return True

    def _claim(self, seat: Seat, room: Room) -> list[str]:
        """As in Select of the paper's Algorithm 1: in arrival order, up to the first that does not fit."""
        claimed: list[str] = []
        blocks = room.blocks
        for _, id in self._waiting[: max(room.requests, 0)]:
            sequence = self._sequences[id]
            blocks -= sequence.blocks(room.block_size)
            if blocks < 0:
                break
            sequence.seat = seat
            seat.running[id] = sequence
            claimed.append(id)
        del self._waiting[: len(claimed)]
        return claimed

    def _snapshot(self, id: str, index: int) -> Snapshot:
        sequence = self._sequences.get(id)
        if sequence is None:
            return Snapshot(id, known=False)
        index = min(index, len(sequence.tokens))
        logprobs = sequence.logprobs[index:] or None
        prompt = len(sequence.new.prompt)
        return Snapshot(id, True, prompt, index, sequence.tokens[index:], logprobs, sequence.end)

    # --- seats ---

    def _vacate(self, seat: Seat) -> int:
        """End the ownership of a seat; how many of its sequences wait again."""
        running, seat.running = seat.running, {}
        for sequence in running.values():
            if sequence.cancelled:
                self._end(sequence, CANCELLED)
            else:
                self._wait(sequence)
        seat.epoch, seat.idle, seat.vacant_since = None, False, self._now
        self._bells[seat.name].rung = False
        return sum(not sequence.cancelled for sequence in running.values())

    def _reclaim(self, seat: Seat) -> int:
        waits = self._vacate(seat)
        if waits:
            self._count({"orca:reclaimed_requests": waits})
        return waits

    def _reap(self) -> int:
        owned = [seat for seat in self._seats.values() if seat.epoch is not None]
        waits = sum(self._reclaim(seat) for seat in owned if seat.expires <= self._now)
        for seat in list(self._seats.values()):
            if seat.epoch is None and seat.vacant_since + SEAT_KEPT <= self._now:
                del self._seats[seat.name]
        return waits

    def _reply(self, seat: Seat, claimed: list[str], foreign: list[str]) -> ExchangeReply:
        cancelled = [sequence.id for sequence in seat.running.values() if sequence.cancelled]
        claims = [self._sequences[id].claim() for id in claimed]
        return ExchangeReply(True, claims, sorted(cancelled + foreign))

    def _view(self, seat: Seat) -> SeatView:
        alive = seat.epoch is not None and seat.expires > self._now
        return SeatView(seat.name, alive, seat.figures, len(seat.running), dict(seat.gauges), seat.summary)

    def _ring(self) -> None:
        for seat in self._seats.values():
            if seat.idle:
                seat.idle = False
                self._bells[seat.name].rung = True
                self._bells[seat.name].waiters.wake()

    # --- gateways ---

    def _register(self, name: str) -> Gateway:
        if name not in self._gateways:
            self._registrations += 1
            self._gateways[name] = Gateway(self._registrations, self._now + GATEWAY_TTL)
        return self._gateways[name]

    def _listen(self, gateway: str, ids: list[str]) -> None:
        unended = {id for id in ids if id in self._sequences and self._sequences[id].end is None}
        self._register(gateway).listening.update(unended)

    def _tell(self, sequence: Sequence, event: TokenEvent) -> None:
        for name, gateway in self._gateways.items():
            if sequence.id in gateway.listening:
                self._outbox[name].append(event)

    def _publish(self) -> None:
        for name, events in self._outbox.items():
            gateway = self._gateways[name]
            gateway.count += 1
            gateway.entries.append((gateway.count, events))
            self._arrivals[name].wake()
        self._outbox.clear()

    def _count(self, increments: dict[str, float]) -> None:
        for name, by in increments.items():
            self._counters[name] += by
