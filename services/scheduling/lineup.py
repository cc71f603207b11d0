"""Lineup: who runs and who waits, with the KV blocks they hold."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from math import inf
from operator import attrgetter

from services.messages import Room
from services.requests import BATCH_CLASS
from services.scheduling.admission import Admission, OnDemand, Reserve
from services.scheduling.block_pool import BlockPool
from services.scheduling.entry import Entry
from services.scheduling.knobs import Knobs
from services.scheduling.order import Order, is_guest

LULL = 0.5  # seconds without others, after which lines of batches run

_rank = attrgetter("rank")


class Lineup:
    """`running` requests are in line for every iteration; `waiting` ones hold no blocks, or paused and keep theirs.
    Both by rank, in which lines of batches are behind all others."""

    def __init__(self, blocks: BlockPool, knobs: Knobs, order: Order) -> None:
        self.blocks = blocks
        self.admission: Admission = Reserve(blocks) if knobs.admission == "reserve" else OnDemand(blocks)
        self.waiting: list[Entry] = []
        self.running: list[Entry] = []
        self.released: list[str] = []  # the engine is still to be told to forget these
        self.grown: list[Entry] = []  # and these have blocks it has not been told of
        self.lines_wait = False  # lines of batches do not run: others are here, or have just been
        self._others_at = -inf  # when others were here, at last
        self.pressed = False  # blocks ran out, and nobody has given any back by ending since
        self._preemptions = self._queries = self._hits = 0  # since they were last taken; the last two in tokens
        self._suspects: list[Entry] = []
        self._places = knobs.max_batch_size * knobs.batches_in_flight
        self._order = order
        self._caching = knobs.prefix_caching

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def full(self) -> bool:
        """No more can run."""
        return len(self.running) >= self._places

    # --- in and out ------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Put a claim in line, in the order in which tenants had their turns: however long it waited for this one, it
        does not pass what another tenant has here in its class. Ranks are equal then, and it comes behind."""
        peers = (e for line in (self.running, self.waiting) for e in line if e.priority == entry.priority)
        entry.rank = max([entry.rank, *(e.rank for e in peers if e.tenant != entry.tenant)])
        insort(self.waiting, entry, key=_rank)
        if entry.suspect:
            insort(self._suspects, entry, key=_rank)

    def leave(self, entry: Entry, failed: bool = False) -> None:
        """It ended, or is another's. `sweep` then takes it from its list."""
        entry.gone, entry.active = True, False
        if failed:
            self.blocks.forget(entry.id)
        elif entry.num_computed_tokens >= entry.next_full:
            self.publish(entry)
        if self._release(entry):
            self.pressed = False

    def sweep(self) -> None:
        self.waiting = [entry for entry in self.waiting if not entry.gone]
        self.running = [entry for entry in self.running if not entry.gone]
        if not self.waiting and not self.running:
            self.blocks.check_idle()

    def _release(self, entry: Entry) -> int:
        if entry.told >= 0:
            self.released.append(entry.id)
        return self.blocks.release(entry.id)

    # --- lines of batches ------------------------------------------------------------------------------------

    @property
    def lines_alone(self) -> bool:
        """Only lines of batches are here."""
        first = [line[0] for line in (self.running, self.waiting) if line]
        return bool(first) and all(entry.line for entry in first)

    def rest(self, now: float) -> float:
        """Seconds until lines of batches, which are alone here, may run; infinite where none are."""
        return max(0.0, self._others_at + LULL - now) if self.lines_alone else inf

    def hold_lines(self, now: float) -> None:
        """Let lines of batches wait while other requests are here, and `LULL` seconds longer, because a request that
        follows would wait for the iteration of lines under way. Lines that run pause and keep their blocks."""
        if len(self) and not self.lines_alone:
            self._others_at = now
        self.lines_wait = self.rest(now) > 0.0
        while self.lines_wait and self.running and self.running[-1].line:
            self._pause(self.running[-1])
            self.pressed = False

    def fits_now(self, entry: Entry) -> bool:
        """Whether it fits, once lines of batches have given up the blocks that it lacks, the latest first; they do not
        where it would not fit then either."""
        return self.fits(entry) or self._take_from_lines(entry)

    def _paused_lines(self) -> list[Entry]:
        return [entry for entry in self.waiting if entry.line and entry.capacity]

    def _take_from_lines(self, entry: Entry) -> bool:
        lines = self._paused_lines()
        if entry.line or not lines or not self._found(entry, lines):
            return False
        while lines and not self._found(entry):
            self._preempt(lines.pop())
        self.pressed = False
        return self._found(entry)

    # --- places ----------------------------------------------------------------------------------------------

    def suspect(self) -> Entry | None:
        """Who must run alone next: who has begun that, or the first."""
        if not self._suspects:
            return None
        self._suspects = [entry for entry in self._suspects if entry.suspect and not entry.gone]
        due = [entry for entry in self._suspects if not (entry.line and self.lines_wait)]
        return next((entry for entry in due if entry.capacity), next(iter(due), None))

    def make_way(self) -> None:
        """Let the first that waits have the place, and where blocks are not reserved the blocks, of those who yield to
        it, and start; if that is enough. Also while `pressed`: who starts has a rank before one that runs, so the last
        rank that runs never grows, and nobody starts twice between two ends."""
        head = self.waiting[0] if self.waiting else None
        if head is None or head.flights or (not self.full and self.fits_now(head)):
            return
        yielding = [e for e in self._order.yielding(head, self.running) if not is_guest(e, head, self.running)]
        if not yielding:
            return
        if self._found(head) or self._take_from_lines(head):
            if self.full:
                self._pause(yielding[0])
            self.enter(head)
        elif not self.admission.whole:
            lines = [] if head.line else self._paused_lines()
            for count in range(1, len(yielding) + 1):
                giving = [*reversed(lines), *yielding[:count]]
                if self._found(head, giving):
                    for entry in giving:
                        self._preempt(entry)
                    self.enter(head)
                    return

    def let_in(self) -> None:
        """Let a guest, who waits and of whose tenant nothing runs, have the place of the last that runs of the tenant
        that has most of them. That one pauses."""
        running = Counter(entry.tenant for entry in self.running if not entry.line)
        for guest in [e for e in self.waiting if e.tenant not in running and not (e.line or e.flights)]:
            most = max(running.values(), default=0)
            if not self.full or most < 2:
                return
            host = next(e for e in reversed(self.running) if running[e.tenant] == most)
            if guest.tenant not in running and not (self._order.classes and host.priority < guest.priority):
                if not self.fits_now(guest):  # asked last: lines of batches give their blocks for it
                    return
                self._pause(host)
                self.enter(guest)
                running.update({host.tenant: -1, guest.tenant: 1})

    def fits(self, entry: Entry) -> bool:
        """Whether it may start, or go on, beside those that run."""
        if self.pressed and self.running and not entry.capacity:
            return False
        return self._found(entry)

    def _found(self, entry: Entry, ending: Sequence[Entry] = ()) -> bool:
        """Whether its blocks are there, or would be if `ending` gave theirs back."""
        if entry.capacity:  # where they are all held, and nobody runs, one that paused gives up its own
            return entry.num_tokens <= entry.capacity or self.blocks.free > 0 or not self.running
        margin = self.admission.margin(len(self.running)) if self.running else 0
        return self.blocks.fits(self._shared(entry), self.admission.blocks(entry), margin, [e.id for e in ending])

    def enter(self, entry: Entry) -> bool:
        """Let it run, from where it paused or from as far as its prefix is found. It must fit. False if it paused and
        is the one that gave up its blocks."""
        if not entry.capacity:
            self._start(entry)
        entry.active = True
        self.waiting.remove(entry)
        insort(self.running, entry, key=_rank)
        return entry.num_tokens <= entry.capacity or self.grow(entry)

    def grow(self, entry: Entry) -> bool:
        """One block more for a request that runs; False if it had to give up all it holds, being the last."""
        while not self.blocks.free:
            last = max((e for e in reversed([*self.running, *self.waiting]) if e.capacity), key=_rank)
            self._preempt(last)
            self.pressed |= entry.line or not last.line
            if last is entry:
                return False
        self.blocks.extend(entry.id, 1)
        entry.capacity += self.blocks.block_size
        self.grown.append(entry)
        return True

    def tell(self, entry: Entry) -> list[int]:
        """Its blocks that the engine does not know of; it is told now."""
        table = self.blocks.table(entry.id)
        new, entry.told = table[max(0, entry.told) :], len(table)
        return new

    def publish(self, entry: Entry) -> None:
        """Let others find its full blocks, as far as their tokens are known."""
        size = self.blocks.block_size
        full = min(entry.num_computed_tokens, entry.num_known_tokens) // size
        if full > entry.published:
            keys = entry.keys.first(full, entry.prompt, entry.output)
            for index in range(entry.published, full):
                self.blocks.publish(entry.id, index, keys[index])
            entry.published = full
        entry.next_full = (entry.published + 1) * size

    def room(self, closing: list[Entry]) -> Room:
        """What can be claimed, with the places and blocks of `closing` as good as free. While `pressed` only what
        later classes yield. Lines of batches yield all they have, and what they wait for."""
        size, whole = self.blocks.block_size, self.admission.whole
        slots = self.blocks.num_blocks * size
        requests = self._places - len(self) + len(closing)
        waiting = sum(self.admission.blocks(entry) for entry in self.waiting if not entry.capacity)
        ending = self.blocks.held_by(entry.id for entry in closing)
        blocks = self.blocks.free + ending - waiting - self.admission.margin(len(self.running))
        if self.pressed:
            requests, blocks = min(0, requests), min(0, blocks)
        tenants = sorted({e.tenant for line in (self.running, self.waiting) for e in line if not e.line})
        guests = 0 if requests > 0 or self.pressed else max(0, len(self.running) - len(tenants))
        tenants = tenants if guests else []
        counted = {entry.id for entry in closing}
        lines = [e for line in (self.running, self.waiting) for e in line if e.line and e.id not in counted]
        if not self._order.classes and not lines:
            return Room(max(0, requests), max(0, blocks), size, whole, [], slots, guests, tenants)
        yields: dict[int, list[int]] = {}
        for entry in self.running if self._order.classes else ():
            if not entry.line and entry.id not in counted:
                held = yields.setdefault(entry.priority, [0, 0])
                held[0] += 1
                held[1] += 0 if whole else len(self.blocks.table(entry.id))
        if lines:
            wanted = sum(self.admission.blocks(entry) for entry in lines if not entry.capacity)
            yields[BATCH_CLASS] = [len(lines), wanted + self.blocks.held_by(entry.id for entry in lines)]
        given = [(p, n, b) for p, (n, b) in sorted(yields.items())]
        return Room(requests, blocks, size, whole, given, slots, guests, tenants)

    def take_counters(self) -> dict[str, float]:
        counters = {
            "vllm:num_preemptions": float(self._preemptions),
            "vllm:prefix_cache_queries": float(self._queries),
            "vllm:prefix_cache_hits": float(self._hits),
        }
        self._preemptions = self._queries = self._hits = 0
        return {name: by for name, by in counters.items() if by}

    # --- blocks ----------------------------------------------------------------------------------------------

    def _shared(self, entry: Entry) -> list[int]:
        """Blocks that hold its prefix. One token at least is left to compute: its logits are wanted. Where the prompt's
        log probabilities are wanted, so are the logits of all its tokens."""
        if not self._caching or entry.scoring:
            return []
        full = (entry.num_tokens - 1) // self.blocks.block_size
        return self.blocks.find(entry.keys.first(full, entry.prompt, entry.output))

    def _start(self, entry: Entry) -> None:
        shared, blocks, size = self._shared(entry), self.admission.blocks(entry), self.blocks.block_size
        self.blocks.take(entry.id, shared, blocks)
        entry.begin(blocks * size, len(shared) * size)
        entry.published = len(shared)
        if self._caching:
            entry.next_full = (len(shared) + 1) * size
        if entry.cached is None:
            entry.cached = min(len(shared) * size, len(entry.prompt))
            self._queries += len(entry.prompt)
            self._hits += entry.cached

    def _pause(self, entry: Entry) -> None:
        entry.active = False
        self.running.remove(entry)
        insort(self.waiting, entry, key=_rank)

    def _preempt(self, entry: Entry) -> None:
        """Take its blocks; it is computed anew when it starts again. A token that is being sampled is taken."""
        self._preemptions += 1
        if entry.active:
            self._pause(entry)
        if entry.num_computed_tokens >= entry.next_full:
            self.publish(entry)
        self._release(entry)
        entry.begin(0, 0)
