"""An iteration between `select` and `update`, and how it is filled (paper, Algorithm 1, lines 19 to 26)."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.messages import Iteration
from services.scheduling.budget import Budget
from services.scheduling.cost_model import CostModel
from services.scheduling.drafts import Drafter
from services.scheduling.knobs import Knobs
from services.scheduling.kv_cache_manager import KVCacheManager
from services.scheduling.last_class import LineBudget
from services.scheduling.request_entry import RequestEntry
from services.scheduling.request_queues import RequestQueues


@dataclass(slots=True)
class InFlight:
    step: int
    entries: list[RequestEntry] = field(default_factory=list)  # in batch order
    scheduled: dict[str, int] = field(default_factory=dict)  # tokens to compute, by id
    partial: set[str] = field(default_factory=set)  # requests that do not reach the end of their input
    unsent: list[RequestEntry] = field(default_factory=list)  # requests that the engine does not know
    finishing: list[RequestEntry] = field(default_factory=list)  # requests whose last allowed token is sampled
    drafts: dict[str, list[int]] = field(default_factory=dict)  # guesses at the tokens after the next one, by id
    num_tokens: int = 0
    num_pairs: int = 0  # of query and key

    def put_decode(self, entry: RequestEntry) -> None:
        """Schedule a request that has one token left to compute. Most calls in a busy engine are these."""
        self.scheduled[entry.id] = 1
        self.entries.append(entry)
        entry.num_in_flight += 1
        entry.num_computed_tokens = tokens = entry.num_tokens
        entry.num_tokens = tokens = tokens + 1
        if entry.num_blocks_sent < 0:
            self.unsent.append(entry)
        if tokens >= entry.max_tokens:
            self.finishing.append(entry)

    def put(self, entry: RequestEntry, count: int) -> None:
        """Schedule the next `count` tokens of a request. A token is sampled if nothing is left after them."""
        self.entries.append(entry)
        self.scheduled[entry.id] = count
        entry.num_in_flight += 1
        if entry.num_blocks_sent < 0:
            self.unsent.append(entry)
        entry.num_computed_tokens = computed = entry.num_computed_tokens + count
        if computed < entry.num_tokens:
            self.partial.add(entry.id)
        else:
            entry.num_tokens = tokens = computed + 1
            if tokens >= entry.max_tokens:
                self.finishing.append(entry)

    def message(self, epoch: str, kv: KVCacheManager, finished: int, wants_forced: bool) -> Iteration:
        """Return the message for the engine, with all requests, blocks and releases that it does not know yet.
        `finished` is the last iteration whose result is known.
        """
        new, new_blocks = [], {}
        for entry in kv.take_extended():
            if entry.num_blocks_sent >= 0:  # those of a new one follow with it
                new_blocks[entry.id] = kv.take_unsent_blocks(entry)
        for entry in self.unsent:
            new.append(entry.as_new(entry.num_computed_tokens - self.scheduled[entry.id]))
            new_blocks[entry.id] = kv.take_unsent_blocks(entry)
        full_blocks = kv.blocks.take_full(finished)
        return Iteration(
            epoch,
            self.step,
            self.scheduled,
            new,
            new_blocks,
            kv.take_released(),
            full_blocks,
            self.drafts,
            wants_forced,
        )


class BatchBuilder:
    """Decodes go first, then chunks of running prompts, then waiting requests, as far as places, blocks and the budget
    allow. What is left goes to drafts.
    """

    def __init__(
        self,
        knobs: Knobs,
        budget: Budget,
        cost: CostModel,
        queues: RequestQueues,
        kv: KVCacheManager,
        drafter: Drafter | None,
    ) -> None:
        """Without `drafter` there are no drafts."""
        self._knobs = knobs
        self._queues = queues
        self._kv = kv
        self._usual, self._for_lines = budget, LineBudget(knobs, cost)
        self._budget = budget
        self._drafter = drafter
        self._guests: list[RequestEntry] = []  # that start in this iteration, while other prompts wait
        self._makes_way: str | None = None  # the tenant all of whose requests wait for them

    def fill(self, batch: InFlight, closed: bool, nothing_in_flight: bool) -> None:
        """Put requests into `batch`. `closed`: no request may join or preempt the running ones."""
        queues = self._queues
        self._budget = self._for_lines if queues.only_lines else self._usual
        self._budget.begin()
        suspect = queues.next_suspect()
        if suspect and not closed and queues.make_fit(suspect):
            if nothing_in_flight:
                self._put_suspect(batch, suspect)
        else:
            guests: list[RequestEntry] = []
            if not suspect and not closed:
                queues.preempt_for_first()
                guests = queues.admit_guests()
            self._guests = [] if self._guests else guests  # not twice in a row: other prompts get on
            self._budget.brief &= not self._guests  # an iteration in which guests start has the usual time
            self._makes_way = queues.makes_way(self._guests)
            decodes = self._put_running(batch, alone=closed or suspect is not None)
            if not closed and not self._guests:
                self._put_waiting(batch, only_paused=suspect is not None)
                queues.left = any(not entry.is_line for entry in queues.waiting[:1])
            if self._drafter:
                batch.drafts = self._drafter.choose(batch.entries[:decodes], self._budget)
        batch.num_tokens, batch.num_pairs = self._budget.num_tokens, self._budget.num_pairs

    def _put_suspect(self, batch: InFlight, suspect: RequestEntry) -> None:
        """Put a suspect into an iteration of its own: if the engine dies now, no other request gets a strike. A suspect
        that brought a token is like any other request from then on.
        """
        if not suspect.active:
            self._queues.admit(suspect)
        self._put_chunk(batch, suspect)

    def _put_running(self, batch: InFlight, alone: bool) -> int:
        """Put the running requests into the batch, each with one token or a chunk of its prompt (lines 19 to 22).
        `alone`: no request may start beside them. Returns how many have one token; they come first in the batch.
        """
        lookahead, queues, put = self._knobs.lookahead, self._queues, batch.put_decode
        prompts, left, context = [], self._budget.max_decodes(self._knobs.max_batch_size), 0
        for entry in queues.running.copy():
            tokens, computed = entry.num_tokens, entry.num_computed_tokens
            if (entry.num_in_flight and not lookahead) or tokens >= entry.max_tokens:
                continue
            if entry.tenant == self._makes_way:
                continue
            if tokens - computed > 1:
                if not self._guests or entry in self._guests or _is_stream(entry):
                    prompts.append(entry)
                continue
            if not left:
                break
            if computed >= entry.capacity and not (entry.active and queues.grow(entry)):
                continue
            put(entry)
            left -= 1
            context += computed
            if computed >= entry.publish_at:
                self._kv.publish(entry, computed)
        decodes = len(batch.entries)
        self._budget.add_decodes(decodes, context)
        self._budget.begin_running(newcomers=bool(prompts) and not (alone or self._guests) and queues.has_newcomers)
        for entry in prompts:
            if len(batch.entries) < self._knobs.max_batch_size and entry.active:
                self._put_chunk(batch, entry)
        self._budget.end_running()
        return decodes

    def _put_waiting(self, batch: InFlight, only_paused: bool) -> None:
        """Put waiting requests into the batch, by rank, up to the first that does not fit (lines 23 to 26). Paused
        requests hold their blocks, so they continue even behind one that lacks blocks.
        """
        for entry in self._queues.waiting.copy():
            if self._queues.full or len(batch.entries) >= self._knobs.max_batch_size:
                return
            if not self._budget.has_room(_is_stream(entry)):
                return
            if entry.is_line and self._queues.lines_wait:
                return  # all requests behind it are lines, too
            if only_paused and not entry.capacity:
                continue
            if entry.num_in_flight and not (
                self._knobs.lookahead and entry.capacity and entry.num_tokens < entry.max_tokens
            ):
                only_paused = True  # its iteration has not come back
            elif self._queues.make_fit(entry):
                if self._queues.admit(entry):
                    self._put_chunk(batch, entry)
            else:
                only_paused = True

    def _put_chunk(self, batch: InFlight, entry: RequestEntry) -> None:
        computed = entry.num_computed_tokens
        rest = entry.num_tokens - computed
        # a stream that continues after a takeover or a preemption: nearly all of its blocks were found
        count = self._budget.take_chunk(computed, rest, _is_stream(entry) and rest <= self._kv.blocks.block_size)
        if count:
            batch.put(entry, count)
            if computed + count >= entry.publish_at:
                self._kv.publish(entry, computed)


def _is_stream(entry: RequestEntry) -> bool:
    """Whether somebody has got tokens of the request and waits for the next one."""
    return bool(entry.output) and not entry.is_line
