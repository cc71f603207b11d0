"""The rules of seats, on plain objects: the other half of what `ReferencePool`'s methods share."""

from __future__ import annotations

from math import inf

from services.messages import Commit, ExchangeReply, Room, TokenEvent
from services.overview import Seat as SeatView
from services.pool.limits import behind
from services.pool.reference.bounds import Bounded
from services.pool.reference.state import Said, Seat, Sequence
from services.pool.scripts import CANCELLED, POISON, SEATS_LOST, TOO_LARGE
from services.requests import BATCH_CLASS

SEAT_KEPT = 3600.0
STRIKES_MOST = 3
SOFT_STRIKES_MOST = 6
SUSPECT = 2
COMES_BACK = 60.0


class Rules(Bounded):
    # --- exchange ---

    def _commit(self, seat: Seat, commits: list[Commit], said: Said) -> set[str]:
        """Append what is new. Returns the ids that ended."""
        over: set[str] = set()
        for commit in commits:
            sequence = seat.running.get(commit.id)
            if sequence is None:
                if commit.id not in over:
                    said.foreign.add(commit.id)
            elif commit.id in said.have or commit.index > len(sequence.tokens):
                said.have.setdefault(commit.id, len(sequence.tokens))
            else:
                self._append(sequence, commit)
                if commit.end is not None:
                    over.add(commit.id)
                    del seat.running[commit.id]
                    self._end(sequence, commit.end)
        return over

    def _append(self, sequence: Sequence, commit: Commit) -> None:
        before = len(sequence.tokens)
        for index in range(before, commit.index + len(commit.tokens)):
            token = commit.tokens[index - commit.index]
            logprob = commit.logprobs[index - commit.index] if commit.logprobs else None
            sequence.tokens.append(token)
            if logprob is not None:
                sequence.logprobs.append(logprob)
            self._tell(sequence, TokenEvent(sequence.id, index, token, logprob))
        self._turns.charge(sequence, before, commit.end is not None, self._now)

    def _keep_only(self, seat: Seat, holds: list[str], over: set[str], said: Said) -> int:
        """The seat gives up what is not in `holds`; how many of those wait again."""
        lost = [sequence for id, sequence in seat.running.items() if id not in holds]
        for sequence in lost:
            del seat.running[sequence.id]
            said.have.pop(sequence.id, None)
        said.foreign.update(id for id in holds if id not in seat.running and id not in over)
        return sum(self._give_up(sequence) for sequence in lost)

    def _claim(self, seat: Seat, room: Room) -> list[str]:
        """As in Select of the paper's Algorithm 1: by turns, up to the first that does not fit. What can never fit this
        seat's engine is passed over, or ends where no seat can hold it."""
        claimed: list[str] = []
        requests, blocks = room.requests, room.blocks
        guests, here = room.guests, set(room.tenants)
        while sequence := self._turns.next():
            if len(claimed) >= room.requests + room.guests + sum(r for _, r, _ in room.yields):
                break
            if 0 < room.slots < sequence.longest:
                if sequence.longest > self._slots_elsewhere(seat):
                    self._turns.leave(sequence, self._now)
                    self._end(sequence, TOO_LARGE)
                else:
                    self._turns.pass_over(sequence)
                continue
            given = [(r, b) for priority, r, b in room.yields if priority > sequence.group.priority]
            requests, blocks = requests - 1, blocks - sequence.blocks(room)
            if blocks + sum(b for _, b in given) < 0:
                break
            if requests + sum(r for r, _ in given) < 0:
                if guests < 1 or sequence.group.tenant in here or behind(sequence.group.priority):
                    break
                guests -= 1
            here.add(sequence.group.tenant)
            self._turns.give(sequence, self._now)
            sequence.seat, sequence.group.deadline = seat, inf
            seat.running[sequence.id] = sequence
            claimed.append(sequence.id)
            self._claims[sequence.group.tenant] += not behind(sequence.group.priority)
        self._turns.end_claim(self._now)
        return claimed

    def _slots_elsewhere(self, seat: Seat) -> float:
        """The most tokens that fit into another seat's engine, if that has an owner or may soon have one again."""
        others = [other for other in self._seats.values() if other is not seat]
        able = [o for o in others if o.epoch is not None or o.vacant_since + COMES_BACK >= self._now]
        return max((other.slots or inf for other in able), default=0)

    def _reply(self, seat: Seat, said: Said) -> ExchangeReply:
        cancelled = sorted(sequence.id for sequence in seat.running.values() if sequence.cancelled)
        claims = [self._sequences[id].claim(self._now) for id in said.claimed]
        return ExchangeReply(True, claims, cancelled, sorted(said.foreign), dict(said.have), said.lost)

    # --- ownership ---

    def _give_up(self, sequence: Sequence) -> bool:
        """Of a sequence that its seat runs no more; whether it waits again."""
        if sequence.cancelled:
            self._end(sequence, CANCELLED)
        else:
            self._wait(sequence)
        return not sequence.cancelled

    def _vacate(self, seat: Seat) -> int:
        """End the ownership of a seat; how many of its sequences wait again."""
        running, seat.running = seat.running, {}
        seat.epoch, seat.owner, seat.idle, seat.vacant_since = None, "", False, self._now
        self._bells[seat.name].rung = False
        return sum(self._give_up(sequence) for sequence in running.values())

    def _reclaim(self, seat: Seat) -> int:
        """Of a seat whose owner is dead or silent."""
        self._strike_softly(seat)
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

    def _strike_softly(self, seat: Seat) -> None:
        """All that may have been computed: a suspect runs alone, lines of batches only where nobody else is."""
        lines = [s for s in seat.running.values() if s.group.priority == BATCH_CLASS]
        others = [s for s in seat.running.values() if s.group.priority != BATCH_CLASS]
        hit = others or lines
        suspects = sorted((s for s in hit if s.living_strikes >= SUSPECT), key=lambda s: s.rank)
        for sequence in suspects[:1] or hit:
            self._strike(seat, sequence.id, soft=True)

    def _strike(self, seat: Seat, id: str, soft: bool = False) -> None:
        """The seat's engine died while it ran this; or its owner."""
        sequence = seat.running.get(id)
        if sequence is None or sequence.cancelled:
            return
        living = sequence.living_strikes
        sequence.strikes, sequence.soft = living + 1, (sequence.soft if living else 0) + soft
        sequence.struck_at = len(sequence.tokens)
        end = SEATS_LOST if sequence.soft >= SOFT_STRIKES_MOST else None
        end = POISON if sequence.strikes - sequence.soft >= STRIKES_MOST else end
        if end is not None:
            del seat.running[id]
            self._end(sequence, end)
            self._count({"orca:poisoned_requests": 1})

    def _view(self, seat: Seat) -> SeatView:
        alive = seat.epoch is not None and seat.expires > self._now
        running, gauges = len(seat.running), dict(seat.gauges)
        return SeatView(seat.name, alive, seat.figures, running, gauges, seat.summary, seat.owner)
