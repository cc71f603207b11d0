"""RequestQueues: the waiting and the running requests of a scheduler."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from math import inf
from operator import attrgetter

from services.messages import EngineFigures, Room
from services.requests import BATCH_CLASS, FEATURES
from services.scheduling.knobs import Knobs
from services.scheduling.kv_cache_manager import KVCacheManager
from services.scheduling.last_class import LULL
from services.scheduling.order import Order, is_guest
from services.scheduling.request_entry import RequestEntry

_rank = attrgetter("rank")


class RequestQueues:
    """`running` requests take part in every iteration. `waiting` requests hold no blocks, or are paused and keep them.
    Both lists are sorted by rank. Lines of batches come after all other requests.
    """

    def __init__(self, kv: KVCacheManager, knobs: Knobs, order: Order, figures: EngineFigures) -> None:
        self.waiting: list[RequestEntry] = []
        self.running: list[RequestEntry] = []
        self.lines_wait = False  # lines of batches do not run, because other requests are here or were just now
        self.left = False  # requests wait since the last selection
        self.out_of_blocks = False  # blocks have run out, and no request has given any back by ending since
        self._kv = kv
        self._order = order
        self._longest = figures.longest
        # the engine's build may be another
        self._features = tuple(name for name in figures.features if name in FEATURES)
        self._places = knobs.max_batch_size * knobs.batches_in_flight
        self._others_here = False  # at the last selection
        self._others_at = -inf  # when requests other than lines of batches were last here
        self._suspects: list[RequestEntry] = []
        self._preemptions = 0  # since the counters were last taken

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def full(self) -> bool:
        """Whether all places in the batch are taken."""
        return len(self.running) >= self._places

    # --- in and out ------------------------------------------------------------------------------------------

    def add(self, entry: RequestEntry) -> None:
        """Add a claimed request. It does not overtake requests of another tenant in its class, however long it has
        waited, because these had their turn before: its rank is raised to theirs, and it comes after them.
        """
        peers = (e for queue in (self.running, self.waiting) for e in queue if e.priority == entry.priority)
        entry.rank = max([entry.rank, *(e.rank for e in peers if e.tenant != entry.tenant)])
        insort(self.waiting, entry, key=_rank)
        if entry.suspect:
            insort(self._suspects, entry, key=_rank)

    def has_few(self, entry: RequestEntry) -> bool:
        """Whether the request's tenant has less than half as many requests here as the one with the most."""
        held = Counter(e.tenant for queue in (self.running, self.waiting) for e in queue if not e.is_line)
        return not entry.is_line and 2 * held[entry.tenant] < max(held.values())

    def remove(self, entry: RequestEntry, failed: bool = False) -> None:
        """Free the blocks of a request that ended or belongs to another scheduler. `sweep` takes it from its list."""
        entry.removed, entry.active = True, False
        if self._kv.free(entry, failed):
            self.out_of_blocks = False

    def sweep(self) -> None:
        """Take removed requests from the lists. Checks the blocks if none is left."""
        self.waiting = [entry for entry in self.waiting if not entry.removed]
        self.running = [entry for entry in self.running if not entry.removed]
        if not self.waiting and not self.running:
            self._kv.blocks.check_idle()

    # --- lines of batches ------------------------------------------------------------------------------------

    @property
    def only_lines(self) -> bool:
        """Whether all requests are lines of batches, and there is at least one."""
        first = [queue[0] for queue in (self.running, self.waiting) if queue]
        return bool(first) and all(entry.is_line for entry in first)

    def seconds_to_lines(self, now: float) -> float:
        """Return the seconds until lines of batches may run; infinite if other requests are here, or no line is."""
        others_at = now if self._others_here else self._others_at
        return max(0.0, others_at + LULL - now) if self.only_lines else inf

    def hold_lines(self, now: float) -> None:
        """Make lines of batches wait while other requests are here and for `LULL` seconds afterwards, because the next
        request would have to wait for an iteration of lines. Running lines are paused and keep their blocks.
        """
        others = bool(len(self)) and not self.only_lines
        if others or self._others_here:  # those that have left were here until the end of the last iteration
            self._others_at = now
        self._others_here = others
        self.lines_wait = self.seconds_to_lines(now) > 0.0
        while self.lines_wait and self.running and self.running[-1].is_line:
            self._pause(self.running[-1])
            self.out_of_blocks = False

    def _paused_lines(self) -> list[RequestEntry]:
        return [entry for entry in self.waiting if entry.is_line and entry.capacity]

    def _preempt_lines(self, entry: RequestEntry) -> bool:
        """Preempt paused lines, the last ones first, until `entry` fits. Returns False, and preempts none, if it would
        not fit without any of them.
        """
        lines = self._paused_lines()
        if entry.is_line or not lines or not self._kv.fits(entry, len(self.running), lines):
            return False
        while lines and not self._kv.fits(entry, len(self.running)):
            self._preempt(lines.pop())
        self.out_of_blocks = False
        return self._kv.fits(entry, len(self.running))

    # --- places ----------------------------------------------------------------------------------------------

    @property
    def has_newcomers(self) -> bool:
        """Whether the first waiting request can start or continue now. Lines of batches do not count."""
        head = self.waiting[0] if self.waiting and not self.full else None
        if head is None or head.is_line or head.num_in_flight:
            return False
        return self._fits(head) or self._kv.fits(head, len(self.running), self._paused_lines())

    def next_suspect(self) -> RequestEntry | None:
        """Return the request that must run alone next: a suspect that already holds blocks, or the first one.

        Lines of batch files are skipped while they have to wait for other requests.
        """
        if not self._suspects:
            return None
        self._suspects = [entry for entry in self._suspects if entry.suspect and not entry.removed]
        due = [entry for entry in self._suspects if not (entry.is_line and self.lines_wait)]
        return next((entry for entry in due if entry.capacity), next(iter(due), None))

    def preempt_for_first(self) -> None:
        """Give the first waiting request the place, and without reservation also the blocks, of requests that give way
        to it, and start it, if that is enough.

        This happens also while `out_of_blocks`: a request that starts has a smaller rank than a running one, so the
        last running request never grows, and no request starts twice between two ends.
        """
        head = self.waiting[0] if self.waiting else None
        if head is None or head.num_in_flight or (not self.full and self.make_fit(head)):
            return
        preemptible = [e for e in self._order.preemptible(head, self.running) if not is_guest(e, head, self.running)]
        if not preemptible:
            return
        if self._kv.fits(head, len(self.running)) or self._preempt_lines(head):
            if self.full:
                self._pause(preemptible[0])
            self.admit(head)
        elif not self._kv.whole:
            lines = [] if head.is_line else self._paused_lines()
            for count in range(1, len(preemptible) + 1):
                giving = [*reversed(lines), *preemptible[:count]]
                if self._kv.fits(head, len(self.running), giving):
                    for entry in giving:
                        self._preempt(entry)
                    self.admit(head)
                    return

    def admit_guests(self) -> list[RequestEntry]:
        """If places are short, or the time for prompts was in the iteration before, let requests enter as guests,
        before all others, whose tenant has at least two places less than the one with the most. If the batch is full,
        the last request of the latter is paused for each of them. Returns the guests.
        """
        guests: list[RequestEntry] = []
        waiting = [entry for entry in self.waiting if not entry.is_line]
        running = Counter(entry.tenant for entry in self.running if not entry.is_line)
        if not self.left and len(self.running) + len(waiting) <= self._places:
            return guests
        for guest in [entry for entry in waiting if not entry.num_in_flight]:
            most = max(running.values(), default=0)
            if running[guest.tenant] + 2 > most:
                continue
            last = next(e for e in reversed(self.running) if running[e.tenant] == most)
            if self._order.has_classes and (last if self.full else self.waiting[0]).priority < guest.priority:
                continue
            if not self.make_fit(guest):  # asked last, because it may preempt lines of batches
                break
            if self.full:
                self._pause(last)
                running[last.tenant] -= 1
            running[guest.tenant] += 1
            if self.admit(guest):
                guests.append(guest)
        return guests

    def makes_way(self, guests: list[RequestEntry]) -> str | None:
        """Return the tenant whose requests wait in the iteration in which prompts of `guests` start: the one with the
        most places, if none of the guests' tenants has as many."""
        if all(guest.output for guest in guests):
            return None
        held = Counter(entry.tenant for entry in self.running)
        tenant, most = held.most_common(1)[0]
        return None if any(held[guest.tenant] == most for guest in guests) else tenant

    def make_fit(self, entry: RequestEntry) -> bool:
        """Return whether the request may start or continue beside the running ones. Lines of batches are preempted for
        it if that is enough.
        """
        return self._fits(entry) or self._preempt_lines(entry)

    def _fits(self, entry: RequestEntry) -> bool:
        blocked = self.out_of_blocks and self.running and not entry.capacity
        return not blocked and self._kv.fits(entry, len(self.running))

    def admit(self, entry: RequestEntry) -> bool:
        """Move a waiting request to the running ones. It continues where it was paused, or starts after its cached
        prefix. It must fit. Returns False if it was paused and had to give up its own blocks.
        """
        if not entry.capacity:
            self._kv.start(entry)
        entry.active = True
        self.waiting.remove(entry)
        insort(self.running, entry, key=_rank)
        return entry.num_tokens <= entry.capacity or self.grow(entry)

    def grow(self, entry: RequestEntry) -> bool:
        """Give a running request one more block. If none is free, the last request with blocks is preempted. Returns
        False if that is the request itself.
        """
        while not self._kv.blocks.free:
            last = max((e for e in reversed([*self.running, *self.waiting]) if e.capacity), key=_rank)
            self._preempt(last)
            self.out_of_blocks |= entry.is_line or not last.is_line
            if last is entry:
                return False
        self._kv.extend(entry)
        return True

    def _pause(self, entry: RequestEntry) -> None:
        """Take the place of a running request. It keeps its blocks."""
        entry.active = False
        self.running.remove(entry)
        insort(self.waiting, entry, key=_rank)

    def _preempt(self, entry: RequestEntry) -> None:
        """Take the blocks of a request, and its place. It is recomputed when it starts again. A token that is being
        sampled for it still counts.
        """
        self._preemptions += 1
        if entry.active:
            self._pause(entry)
        self._kv.free(entry)
        entry.num_reached_tokens = max(entry.num_reached_tokens, entry.num_computed_tokens)
        entry.begin(0, 0)

    # --- for the pool and the metrics ------------------------------------------------------------------------

    def room(self, finishing: list[RequestEntry]) -> Room:
        """Return what can be claimed. The places and blocks of the requests `finishing` count as free. While
        `out_of_blocks`, only what later classes give up can be claimed. Lines of batches give up all they hold and all
        they wait for.
        """
        kv, blocks = self._kv, self._kv.blocks
        places = self._places - len(self) + len(finishing)
        wanted = sum(kv.num_blocks(entry) for entry in self.waiting if not entry.capacity)
        ending = blocks.held_by(entry.id for entry in finishing)
        free = blocks.free + ending - wanted - kv.margin(len(self.running))
        if self.out_of_blocks:
            places, free = min(0, places), min(0, free)
        held = Counter(e.tenant for queue in (self.running, self.waiting) for e in queue if not e.is_line)
        guests = 0 if places > 0 or self.out_of_blocks else max(0, len(self.running) - len(held))
        tenants = sorted(t for t, n in held.items() if n + 2 > max(held.values())) if guests else []
        counted = {entry.id for entry in finishing}
        lines = [e for queue in (self.running, self.waiting) for e in queue if e.is_line and e.id not in counted]
        yields = []
        if self._order.has_classes or lines:
            yields = self._yields(lines, counted)
        else:
            places, free = max(0, places), max(0, free)
        return Room(places, free, blocks.block_size, kv.whole, yields, self._longest, guests, tenants, self._features)

    def _yields(self, lines: list[RequestEntry], counted: set[str]) -> list[tuple[int, int, int]]:
        """Return what requests would give up to an earlier class as (class, places, blocks), without those of the ids
        `counted`.
        """
        kv, blocks = self._kv, self._kv.blocks
        yields: dict[int, list[int]] = {}
        for entry in self.running if self._order.has_classes else ():
            if not entry.is_line and entry.id not in counted:
                held = yields.setdefault(entry.priority, [0, 0])
                held[0] += 1
                held[1] += 0 if kv.whole else len(blocks.table(entry.id))
        if lines:
            wanted = sum(kv.num_blocks(entry) for entry in lines if not entry.capacity)
            yields[BATCH_CLASS] = [len(lines), wanted + blocks.held_by(entry.id for entry in lines)]
        return [(priority, places, count) for priority, (places, count) in sorted(yields.items())]

    def take_counters(self) -> dict[str, float]:
        """Return the increments since the last call that are not 0."""
        counters = {"vllm:num_preemptions": float(self._preemptions)} | self._kv.take_counters()
        self._preemptions = 0
        return {name: by for name, by in counters.items() if by}
