"""SeatRules: commits and claims of a seat, leases and strikes.

The counterpart of the Lua fragments `commit`, `claim` and `seats`. `_claim` admits new requests as
`Select` in Algorithm 1 of the Orca paper does: in order, while blocks for their maximum length are free.
"""

from __future__ import annotations

from math import inf

from load.reference.bounds import BoundRules
from load.reference.state import LastReply, Seat, Sequence
from services.messages import Commit, ExchangeReply, Room, TokenEvent
from services.overview import SeatOverview
from services.pool.scripts import CANCELLED, POISON, SEATS_LOST, TOO_LARGE, UNSERVED
from services.requests import Tenure, is_line, needs_of
from services.seats import cluster_of, engine_of

SEAT_KEPT = 3600.0
MAX_STRIKES = 3
MAX_SOFT_STRIKES = 6
SUSPECT = 2  # strikes from which on a scheduler runs a sequence alone
RETURN_TIME = 900.0  # seconds within which a seat that lost its owner may have one again: a start may take so long


class SeatRules(BoundRules):
    """Adds commits, claims, leases and strikes. `GroupRules` describes the chain of classes."""

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


def _can_serve(engine: Room | Seat, sequence: Sequence) -> bool:
    """Whether an engine has the size and the features that a sequence needs."""
    fits = not engine.longest or sequence.max_tokens <= engine.longest
    return fits and needs_of(sequence.new.sampling).keys() <= set(engine.features)
